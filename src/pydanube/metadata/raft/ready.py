"""What a node has decided: the caller's part of the contract."""

from msgspec import Struct

from pydanube.metadata.raft.entries import HardState, LogEntry, Snapshot
from pydanube.metadata.raft.messages import Message
from pydanube.metadata.raft.reads import ReadReady


class Ready(Struct, frozen=True):
    """To be carried out in this order, then reported with `advance`; one at a time.

    1. `send_first` may be sent at once.
    2. `snapshot`, if any, replaces everything stored: it is durable before the log is cut.
    3. `hard_state`, if any, and `entries` are stored; the entries replace every stored one from
       the index of their first on. All of it is synced before anything below happens.
    4. `send_after` is sent.
    5. `snapshot`, then `committed`, are given to the state machine.
    6. `reads` are answered once the state machine has applied what they name.
    """

    hard_state: HardState | None
    snapshot: Snapshot | None
    entries: tuple[LogEntry, ...]
    send_first: tuple[Message, ...]
    send_after: tuple[Message, ...]
    committed: tuple[LogEntry, ...]
    reads: tuple[ReadReady, ...]

    @property
    def must_sync(self) -> bool:
        """Whether there is something to store."""
        return self.hard_state is not None or bool(self.entries) or self.snapshot is not None
