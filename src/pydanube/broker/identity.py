"""The number that names a broker: drawn when its data directory is first used, and kept there."""

from pydanube.errors import Corruption
from pydanube.model.ids import BrokerId
from pydanube.runtime.files import read_whole, write_atomically
from pydanube.runtime.machine import Machine

_NODE_ID = "node_id"
_BROKER_IDS = 2**53 - 1


async def broker_identity(machine: Machine, directory: str) -> BrokerId:
    """Return the broker's number. Call it by the directory's owner alone."""
    path = f"{directory}/{_NODE_ID}"
    if not await machine.files.exists(path):
        broker_id = BrokerId(1 + machine.randomness.below(_BROKER_IDS))
        await write_atomically(machine.files, directory, _NODE_ID, b"%d\n" % broker_id)
        return broker_id
    text = (await read_whole(machine.files, path)).strip()
    if not text.isdigit() or not 1 <= int(text) < 2**64:
        raise Corruption(
            f"{path} should hold the broker's number and holds {text[:40]!r}; restore it from a "
            "backup, or write the number that the journal says it belongs to"
        )
    return BrokerId(int(text))
