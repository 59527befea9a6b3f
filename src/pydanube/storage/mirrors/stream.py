"""The records of one topic on their way to its mirrors."""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from pydanube.errors import DanubeError, Overloaded
from pydanube.model.ids import BrokerId, TopicId
from pydanube.storage.mirrors.replication import Replication

Done = Callable[[DanubeError | None], None]


class Record(NamedTuple):
    """A journal record as it is sent: what its frame says, and its payload in parts."""

    kind: int
    flags: int
    parts: tuple[bytes | memoryview, ...]

    @property
    def size(self) -> int:
        """How many bytes its payload has."""
        return sum(map(len, self.parts))


class WaitingBytes:
    """What the records of all topics that are kept for mirrors take up, and how much may."""

    def __init__(self, unacknowledged_max: int, backlog_max: int) -> None:
        self.unacknowledged = 0
        self.unacknowledged_max = unacknowledged_max
        self.backlog = 0
        """Of records that are acknowledged, kept for mirrors that are behind."""
        self.backlog_max = backlog_max


class TopicStream:
    """Numbers a topic's records, keeps them until mirrors have them, and tells what is durable.

    Records that are acknowledged are kept for slow mirrors only as long as all of them take up no
    more than `waiting.backlog_max`; then the slowest has to catch up from the journal. Records that
    are not acknowledged are bounded by refusing more of them.
    """

    def __init__(
        self,
        topic_id: TopicId,
        epoch: int,
        stream: int,
        own: BrokerId,
        waiting: WaitingBytes,
        recorded: tuple[BrokerId, ...] = (),
    ) -> None:
        self.topic_id = topic_id
        self.epoch = epoch
        self.stream = stream
        self.replication = Replication(own, recorded)
        self.failure: DanubeError | None = None
        self.on_added: Callable[[], None] | None = None
        self.on_moved: Callable[[], None] | None = None
        """Called when more is acknowledged, or nothing ever will be again."""
        self.on_cut: Callable[[BrokerId], None] | None = None
        """Called when a mirror's records are not kept any more."""
        self._waiting_bytes = waiting
        self._records: deque[Record] = deque()
        self._before = 0
        """The number of the record before the first one that is kept."""
        self._acknowledged = 0
        self._counted = 0
        """Up to here records count as acknowledged in the bytes."""
        self._kept_for: dict[BrokerId, int] = {}
        self._waiting: deque[tuple[int, Done]] = deque()

    # What the journal's side calls.

    @property
    def acknowledged(self) -> int:
        """The number up to which records are durable on enough journals; stays after a failure."""
        return self._acknowledged

    @property
    def unacknowledged_bytes(self) -> int:
        """What of it waits for mirrors."""
        skipped = self._counted - self._before
        return sum(record.size for record in islice(self._records, skipped, None))

    def check(self) -> None:
        """Refuse what could not be acknowledged: Overloaded for now, or the failure for good."""
        if self.failure is not None:
            raise self.failure
        waiting = self._waiting_bytes
        if waiting.unacknowledged >= waiting.unacknowledged_max:
            raise Overloaded(
                f"{waiting.unacknowledged} bytes wait for the mirrors of their topics, the limit "
                f"is {waiting.unacknowledged_max} (mirrors.unacknowledged_bytes_max); repeat in a "
                "moment"
            )

    def add(self, kind: int, flags: int, parts: tuple[bytes | memoryview, ...]) -> int:
        """Send a record that is being journaled; return its number."""
        record = Record(kind, flags, parts)
        number = self.replication.add()
        self._records.append(record)
        self._waiting_bytes.unacknowledged += record.size
        if self.on_added is not None:
            self.on_added()
        return number

    def synced(self, number: int) -> None:
        """Take in that the own journal has synced a record."""
        self.replication.synced(number)
        self._moved()

    def when_acknowledged(self, number: int, done: Done) -> None:
        """Call `done` once a record is acknowledged, or with the reason why it never will be."""
        if number <= self.acknowledged:
            done(None)
        elif self.failure is not None:
            done(self.failure)
        else:
            self._waiting.append((number, done))

    def fail(self, error: DanubeError) -> None:
        """Acknowledge nothing more, for good."""
        if self.failure is not None:
            return
        self.failure = error
        waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            done(error)
        if self.on_moved is not None:
            self.on_moved()

    def close(self) -> None:
        """Keep nothing any more."""
        self._kept_for.clear()
        self._trim()
        self._waiting_bytes.unacknowledged -= self.unacknowledged_bytes
        self._counted = self._before = self.replication.last
        self._records.clear()

    # What the mirrors' side calls.

    def keeps_for(self, mirror: BrokerId) -> bool:
        """Tell whether records are kept for a mirror."""
        return mirror in self._kept_for

    def keep_for(self, mirror: BrokerId, position: int) -> bool:
        """Keep what follows a position until the mirror has it; False if it is gone already."""
        if position < self._before:
            return False
        self._kept_for[mirror] = position
        return True

    def begins(self, mirror: BrokerId, position: int) -> bool:
        """Take in what a mirror has that was asked anew; tell whether what follows is here."""
        self.replication.begins(mirror, position)
        kept = self.keep_for(mirror, position)
        self._moved()
        return kept

    def let_go(self, mirror: BrokerId) -> None:
        """Keep nothing for a mirror any more."""
        self._kept_for.pop(mirror, None)
        self._trim()

    def take(self, after: int, bytes_max: int) -> list[Record]:
        """Return records that follow a number, about so many bytes, at least one if there is."""
        taken: list[Record] = []
        for record in islice(self._records, after - self._before, None):
            bytes_max -= record.size
            if taken and bytes_max < 0:
                break
            taken.append(record)
        return taken

    def has(self, mirror: BrokerId, position: int) -> None:
        """Take in what a mirror says it has synced."""
        self.replication.has(mirror, position)
        if mirror in self._kept_for:
            self._kept_for[mirror] = max(position, self._kept_for[mirror])
        self._moved()

    def set_changed(self) -> None:
        """Take in that another set counts."""
        self._moved()

    def _moved(self) -> None:
        acknowledged = self.replication.acknowledged
        moved = self.failure is None and acknowledged > self._counted
        if moved:
            self._acknowledged = acknowledged
            skipped, upto = self._counted - self._before, acknowledged - self._before
            size = sum(record.size for record in islice(self._records, skipped, upto))
            self._counted = acknowledged
            self._waiting_bytes.unacknowledged -= size
            self._waiting_bytes.backlog += size
        self._trim()
        if moved:
            while self._waiting and self._waiting[0][0] <= acknowledged:
                self._waiting.popleft()[1](None)
            if self.on_moved is not None:
                self.on_moved()

    def _trim(self) -> None:
        waiting = self._waiting_bytes
        self._drop_before(min([self._counted, *self._kept_for.values()]))
        while waiting.backlog > waiting.backlog_max and self._before < self._counted:
            slowest = min(self._kept_for, key=lambda mirror: self._kept_for[mirror])
            del self._kept_for[slowest]
            self._drop_before(min([self._counted, *self._kept_for.values()]))
            if self.on_cut is not None:
                self.on_cut(slowest)

    def _drop_before(self, number: int) -> None:
        while self._before < number:
            self._waiting_bytes.backlog -= self._records.popleft().size
            self._before += 1
