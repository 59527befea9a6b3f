"""Takes the metadata of a broker that was alone into its first Raft node."""

from pydanube.metadata.local_log import recover
from pydanube.metadata.state_machine import StateMachine
from pydanube.runtime.files import Files


async def local_state(files: Files, directory: str) -> bytes | None:
    """Return the state that a single-node store left in the directory, None if there is none.

    Its files are not changed. Corruption if they are damaged.
    """
    recovered = await recover(files, directory)
    if recovered.state is None:
        return None
    machine = StateMachine()
    machine.restore(recovered.state)
    for command in recovered.commands:
        machine.apply(command)
    return machine.snapshot()
