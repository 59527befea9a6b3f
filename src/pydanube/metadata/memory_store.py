"""The metadata in memory: for tests, and for brokers that promise to remember nothing."""

from typing_extensions import override

from pydanube.errors import Unavailable
from pydanube.metadata.commands import Command, ExpireLeases
from pydanube.metadata.machine_store import MachineStore
from pydanube.metadata.state_machine import Result, StateMachine
from pydanube.metadata.watches import Watches, WatchLimits
from pydanube.runtime.clock import Clock


class MemoryMetadataStore(MachineStore):
    """Applies every command at once. What it holds goes with the process."""

    def __init__(self, clock: Clock, watch_limits: WatchLimits | None = None) -> None:
        super().__init__(clock, StateMachine(), Watches(0, watch_limits or WatchLimits()))
        self._closed = False

    def become(self, state: bytes) -> None:
        """Take the state of a snapshot on, before anything is asked; Corruption if it is none."""
        self._machine.restore(state)
        self._watches.compact(self._machine.revision)

    @property
    def failure(self) -> None:
        """Why nothing can be written any more: memory does not fail."""
        return None

    @property
    def waiting_for(self) -> None:
        """What it has no room for: it writes nowhere."""
        return None

    @override
    async def _propose(self, command: Command) -> Result:
        if self._closed:
            raise Unavailable("the metadata store is closed")
        result = self._apply(command)
        self._applied()
        return result

    @override
    def _propose_expiry(self, now_ms: int) -> None:
        self._apply(ExpireLeases(now_ms))
        self._applied()

    @override
    async def close(self) -> None:
        self._closed = True
        self._lease_timer.close()
        self._watches.end(None)
