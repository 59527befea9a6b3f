"""What a broker runs on: one bundle of the interfaces of this room."""

from msgspec import Struct

from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.files import Files
from pydanube.runtime.network import Network
from pydanube.runtime.randomness import Randomness, SystemRandomness
from pydanube.runtime.system_files import SystemFiles
from pydanube.runtime.system_network import SystemNetwork


class Machine(Struct, frozen=True, kw_only=True):
    """Time, disk, network and chance, real or simulated."""

    clock: Clock
    files: Files
    network: Network
    randomness: Randomness


def this_machine() -> Machine:
    """Return the real thing."""
    return Machine(
        clock=SystemClock(),
        files=SystemFiles(),
        network=SystemNetwork(),
        randomness=SystemRandomness(),
    )
