"""What a broker runs on: one bundle of the interfaces of this room."""

import os

from msgspec import Struct

from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.descriptors import descriptors_max
from pydanube.runtime.files import Files
from pydanube.runtime.network import Network
from pydanube.runtime.randomness import Randomness, SystemRandomness
from pydanube.runtime.system_files import SystemFiles
from pydanube.runtime.system_network import SystemNetwork
from pydanube.runtime.usage import UsageSampler, system_usage


class Machine(Struct, frozen=True, kw_only=True):
    """Time, disk, network and chance, real or simulated."""

    clock: Clock
    files: Files
    network: Network
    randomness: Randomness
    usage: UsageSampler | None = None
    """How busy it is; a simulated one does not tell."""
    descriptors_max: int | None = None
    """How many files and connections the process may have open; None if nobody counts them."""


def this_machine() -> Machine:
    """Return the real thing."""
    clock = SystemClock()
    return Machine(
        descriptors_max=descriptors_max(),
        usage=system_usage(clock, os.environ),
        clock=clock,
        files=SystemFiles(),
        network=SystemNetwork(),
        randomness=SystemRandomness(),
    )
