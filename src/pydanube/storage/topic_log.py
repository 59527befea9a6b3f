"""One topic's messages: the door through which topics append and subscriptions read."""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct
from typing_extensions import override

from pydanube.errors import (
    Conflict,
    DanubeError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from pydanube.model.batch import Batch
from pydanube.model.ids import JournalPosition, Offset, ProducerId, TopicId
from pydanube.model.policies import Durability
from pydanube.runtime.clock import Clock
from pydanube.storage.journal.contents import JournalFile, TopicIndex
from pydanube.storage.journal.producers import LastBatch, ProducerStamp
from pydanube.storage.journal.reader import JournalReader, StoredRecord
from pydanube.storage.journal.records import Kind, encode_batch_header
from pydanube.storage.journal.space import JournalSpace
from pydanube.storage.journal.writer import Entry, JournalWriter
from pydanube.storage.pieces import Piece
from pydanube.storage.segments.catalog import SegmentEntry
from pydanube.storage.segments.exporter import TopicExport
from pydanube.storage.segments.staged import Staged
from pydanube.storage.segments.topic_segments import TopicSegments
from pydanube.storage.tail_cache import TopicTail
from pydanube.storage.tiered_reader import READ_BYTES, History, TieredReader

__all__ = ["Done", "LastBatch", "Piece", "ProducerStamp", "TopicLog"]

Done = Callable[[DanubeError | None], None]
"""Called once, on the event loop: with None when it is done, with the reason when it never will."""

Guard = Callable[[], DanubeError | Literal["wait"] | None]
"""Returns why nothing may be accepted any more, None while all is well.

While it says "wait" that is not decided; whoever guards calls `settle` when it is.
"""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""What may wait for the guard."""


def ask_guard(guard: Guard | None, *, is_let_go: bool) -> DanubeError | Literal["wait"] | None:
    """Return what the guard says; for a topic that was let go nobody waits until it has decided."""
    verdict = guard() if guard is not None else None
    if verdict == "wait" and is_let_go:
        return Unavailable("the broker let the topic go before its lease was certain")
    return verdict


class Stream(Protocol):
    """Takes a topic's records to its mirrors, and knows which of them are durable there."""

    failure: DanubeError | None
    on_moved: Callable[[], None] | None

    @property
    def acknowledged(self) -> int:
        """The number up to which records are on enough journals, the own one among them."""

    def check(self) -> None:
        """Raise Overloaded while too much waits, or why nothing is taken any more."""

    def add(self, kind: int, flags: int, parts: tuple[bytes | memoryview, ...]) -> int:
        """Send a record that is being journaled; return its number."""

    def synced(self, number: int) -> None:
        """Take in that the own journal has synced a record."""


class Snapshot(Struct, frozen=True):
    """A topic at one moment, everything appended so far included."""

    end: Offset
    producers: tuple[LastBatch, ...]


class _Append(Entry):
    """A batch on its way into the journal."""

    __slots__ = (
        "base",
        "batch",
        "done",
        "error",
        "in_journal",
        "last",
        "log",
        "number",
        "over",
        "repeats",
        "reported",
    )

    def __init__(
        self,
        log: "TopicLog",
        base: Offset,
        batch: Batch,
        header: bytes,
        done: Done,
        how: Durability,
        last: LastBatch | None,
    ) -> None:
        super().__init__(Kind.BATCH, (header, batch.data), durability=how)
        self.log = log
        self.base = base
        self.batch = batch
        self.done = done
        self.last = last
        self.number = 0
        """In the topic's stream to its mirrors; 0 if it has none."""
        self.repeats: list[Done] = []
        """Whoever sent it again before it was answered."""
        self.in_journal = False
        self.reported = False
        self.over = False
        self.error: DanubeError | None = None

    @override
    def placed(self, position: JournalPosition, file: JournalFile) -> None:
        self.in_journal = True
        self.log.enter(self.base, self.batch.count, position, self.size, file)
        if self.last is not None:
            self.log.enter_producer(self)

    @override
    def finished(self, error: DanubeError | None) -> None:
        self.over = True
        self.error = error
        if self.number and error is None:
            self.log.synced(self.number)
        self.log.settle()


class TopicLog:
    """Gives offsets, keeps messages, and shows readers what is durable.

    Offsets are given in the order of appending, without gaps. Readers see what lies below
    `durable_end`, which moves only forward and never past a batch that may still be lost (as far
    as its durability promises).
    """

    def __init__(
        self,
        topic_id: TopicId,
        index: TopicIndex,
        tail: TopicTail,
        writer: JournalWriter,
        reader: JournalReader,
        clock: Clock,
        history: History | None = None,
        space: JournalSpace | None = None,
    ) -> None:
        self.topic_id = topic_id
        self._index = index
        self._tail = tail
        self._writer = writer
        self._journal = reader
        self._reader = TieredReader(topic_id, index, tail, writer, reader, history)
        self._clock = clock
        self._space = space
        self._history = history
        self._segments = history.segments if history is not None else None
        self._export: TopicExport | None = None
        if self._segments is not None:
            # Segments may know more than this journal, which may be new or have lost its files.
            index.exported = self._segments.end
            index.next_offset = max(index.next_offset, self._segments.end)
        self._next = self._durable_end = Offset(index.next_offset)
        self._pending: deque[_Append] = deque()
        self._unsettled: dict[ProducerId, _Append] = {}
        """The latest batch of each producer, as long as it is not both written and reported."""
        self._failure: DanubeError | None = None
        self._fenced: DanubeError | None = None
        self._stream: Stream | None = None
        self._dropped = False
        self._held_bytes: int | None = None
        """While the guard is undecided, what has been appended since."""
        self.guard: Guard | None = None
        """Asked before anything is shown as durable: a topic that was lost takes nothing more."""

    @property
    def first_offset(self) -> Offset:
        """The oldest offset there is, or the next one while there is none."""
        return self._reader.first_offset

    @property
    def next_offset(self) -> Offset:
        """The offset the next message will get."""
        return self._next

    @property
    def durable_end(self) -> Offset:
        """Readers see what lies below."""
        return self._durable_end

    @property
    def failure(self) -> DanubeError | None:
        """Why nothing more is acknowledged until the log is opened anew; None if all is well."""
        return self._failure

    def append(
        self,
        batch: Batch,
        done: Done,
        *,
        durability: Durability = "fsync",
        stamp: ProducerStamp | None = None,
    ) -> Offset:
        """Give the batch its offsets and queue it; return the first offset.

        `done(None)` follows once it is durable as promised and readers can see it, `done(error)`
        if the journal failed; in the order of appending, and never before this returns. Raises
        Overloaded while too much waits for the disk or for the segment store, and Unavailable when
        the journal has stopped; no offset is given then. From this call on a batch with a stamp is
        its producer's latest.
        """
        if self._dropped:
            raise NotFound(f"topic {self.topic_id} has been deleted")
        if self._fenced is not None:
            raise self._fenced
        if self._space is not None:
            self._space.check()
        if self._stream is not None:
            self._stream.check()
        self._check_held(len(batch.data))
        if batch.count > len(batch.data):
            # A row has eight bytes of time at least; recovery relies on it.
            raise InvalidRequest("a batch has more rows than bytes; send it uncompressed")
        base = self._next
        now_ms = self._clock.now_ms()
        header = encode_batch_header(
            self.topic_id, self._index.epoch, base, batch.count, now_ms, stamp
        )
        last = None
        if stamp is not None:
            last = LastBatch(stamp=stamp, base=base, count=batch.count, time_ms=now_ms)
        entry = _Append(self, base, batch, header, done, durability, last)
        self._writer.queue(entry)
        if self._stream is not None:
            entry.number = self._stream.add(Kind.BATCH, 0, (header, batch.data))
        self._pending.append(entry)
        if stamp is not None:
            self._unsettled[stamp.producer_id] = entry
        self._next = Offset(base + batch.count)
        return base

    def _check_held(self, size: int) -> None:
        if self._held_bytes is None:
            return
        if self._held_bytes + size > HELD_BYTES_MAX:
            raise Overloaded("this broker waits for its cluster before it acknowledges more")
        self._held_bytes += size

    # Producers that number their batches.

    @property
    def producers(self) -> Mapping[ProducerId, LastBatch]:
        """The latest batches that are in the journal, durable or about to be."""
        return self._index.producers

    def last_batch(self, producer_id: ProducerId) -> LastBatch | None:
        """Return a producer's latest batch, whether it is durable yet or not."""
        entry = self._unsettled.get(producer_id)
        return entry.last if entry is not None else self._index.producers.get(producer_id)

    def when_last_is_durable(self, producer_id: ProducerId, done: Done) -> None:
        """Call `done` once a producer's latest batch is durable, or why it never will be."""
        entry = self._unsettled.get(producer_id)
        if entry is not None and not entry.reported:
            entry.repeats.append(done)
            return
        last = self.last_batch(producer_id)
        if self._failure is not None and last is not None and last.end > self._durable_end:
            done(self._failure)
        else:
            done(None)

    def forget_producer(self, producer_id: ProducerId) -> None:
        """Let a producer be unknown, unless it has something under way."""
        if producer_id not in self._unsettled:
            self._index.producers.pop(producer_id, None)

    def enter_producer(self, entry: _Append) -> None:
        """Take in that a producer's batch is being written."""
        assert entry.last is not None
        # Not before: a new file's prologue must not know of a batch that can still be lost.
        self._index.producers[entry.last.stamp.producer_id] = entry.last
        self._release(entry)

    def _release(self, entry: _Append) -> None:
        if entry.last is None or not (entry.reported and entry.in_journal):
            return
        producer_id = entry.last.stamp.producer_id
        if self._unsettled.get(producer_id) is entry:
            del self._unsettled[producer_id]

    # Reading.

    def read_cached(self, start: Offset, end: Offset) -> list[Piece] | None:
        """Return contiguous pieces from `start` on without waiting, as far as the cache goes.

        Empty if nothing durable is there yet; None unless `start` is in the cache.
        """
        if start >= self._durable_end:
            return []
        return self._tail.read(start, min(end, self._durable_end))

    async def read(self, start: Offset, end: Offset, *, bytes_max: int = READ_BYTES) -> list[Piece]:
        """Return contiguous pieces of [start, end), about `bytes_max` bytes, from any tier.

        At least one if there is anything. A first piece behind `start` means that the offsets
        between hold nothing. Raises Corruption when stored bytes are damaged, and Unavailable when
        the segment store cannot be read now.
        """
        return await self._reader.read(start, min(end, self._durable_end), bytes_max)

    async def offset_at_time(self, time_ms: int) -> Offset:
        """Return the first offset that was published at that time or later, else `durable_end`.

        Publishers' clocks decide, so messages behind it may be older.
        """
        return await self._reader.offset_at_time(time_ms, self._durable_end)

    # What exports need.

    def exports_to(self, export: TopicExport) -> None:
        """Tell that one what is journaled from now on."""
        self._export = export

    @property
    def segments(self) -> TopicSegments | None:
        """What of it is in segments; None if it never will be."""
        return self._segments

    async def adopt(self, keys: Sequence[str], staged: Staged) -> SegmentEntry:
        """Put an object that somebody has joined in the place of its segments, if it is right."""
        if self._history is None:
            raise Conflict("the topic has no segments to join")
        return await self._history.compaction.adopt(self._history.segments, keys, staged)

    @property
    def synced_end(self) -> Offset:
        """All below is on disk for good and can be read."""
        index = self._index
        number = bisect_left(index.positions, self._writer.durable)
        end = index.bases[number] if number < len(index.bases) else index.end
        return min(Offset(end), self._durable_end)

    @property
    def unexported_bytes(self) -> int:
        """What is in the journal and in no segment, in bytes of the journal."""
        return self._index.bytes_from(self._index.exported)

    @property
    def unexported_position(self) -> int:
        """Where the oldest of that lies in the journal."""
        index = self._index
        return index.positions[index.find(index.exported)] if index.bases else 0

    def export_end(self, start: Offset, bytes_max: int) -> Offset:
        """Return where a segment of about that many journaled bytes would end."""
        index = self._index
        number = index.find(start)
        while number < len(index.bases) and bytes_max > 0:
            bytes_max -= index.sizes[number]
            number += 1
        end = index.bases[number] if number < len(index.bases) else index.end
        return min(Offset(end), self.synced_end)

    def exported(self) -> None:
        """Take note that the topic's segments reach further than before."""
        assert self._segments is not None
        self._index.exported = self._segments.end
        if self._space is not None:
            self._space.look_around()

    def enter(
        self, base: Offset, count: int, position: JournalPosition, size: int, file: JournalFile
    ) -> None:
        """Take in where a batch is being written."""
        self._index.add(base, count, position, size)
        if self._index.last_file is not file:
            self._index.last_file = file
            file.topics.add(self.topic_id)

    def settle(self) -> None:
        """Show and report what is over, in the order of appending."""
        while self._pending and self._pending[0].over:
            if not self._is_mirrored(self._pending[0]) or self._is_held(self._pending[0]):
                return
            entry = self._pending.popleft()
            if self._failure is None:
                self._durable_end = Offset(entry.base + entry.batch.count)
                if not self._dropped:
                    self._tail.add(entry.base, entry.batch)
                    if self._export is not None:
                        self._export.appended(entry.size)
            entry.reported = True
            entry.done(self._failure)
            for repeat in entry.repeats:
                repeat(self._failure)
            self._release(entry)

    # Mirrors.

    def replicate_to(self, stream: Stream | None) -> None:
        """Acknowledge from now on only what that stream has brought to enough mirrors, too."""
        self._stream = stream
        if stream is not None:
            stream.on_moved = self.settle
        self.settle()

    def synced(self, number: int) -> None:
        """Take in that a record of the stream is synced here."""
        if self._stream is not None:
            self._stream.synced(number)

    def _is_mirrored(self, entry: _Append) -> bool:
        """Tell whether enough mirrors have a batch, or it need not be waited for any more."""
        stream = self._stream
        if stream is None or not entry.number or entry.number <= stream.acknowledged:
            return True
        self._failure = self._failure or entry.error or stream.failure
        return self._failure is not None

    def _is_held(self, entry: _Append) -> bool:
        """Tell whether the guard must decide first; what it refuses fails for good."""
        # Behind a batch that failed nothing may show, even if it was content with less.
        self._failure = self._failure or entry.error
        guard = self.guard if self._failure is None else None
        verdict = ask_guard(guard, is_let_go=self._dropped)
        if verdict == "wait":
            self._held_bytes = self._held_bytes or 0
            return True
        self._failure = self._failure or verdict
        self._held_bytes = None
        return False

    async def wait_until_settled(self) -> None:
        """Wait until everything appended so far has been answered."""
        if not self._pending:
            return
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(error: DanubeError | None) -> None:
            if not settled.done():
                settled.set_result(None)

        self._pending[-1].repeats.append(told)
        await settled

    def interrupt(self, error: DanubeError) -> None:
        """Acknowledge nothing of what is under way, and nothing behind it."""
        if self._pending:
            self._failure = self._failure or error
        self.settle()

    def fail(self, error: DanubeError) -> None:
        """Acknowledge and take nothing more, for good; what waits is told so."""
        self._fenced = self._fenced or error
        self._failure = self._failure or error
        self.settle()

    @property
    def fenced(self) -> DanubeError | None:
        """Why nothing more is taken, if so; the same holds for what subscriptions settle."""
        return self._fenced

    def snapshot(self) -> Snapshot:
        """Return where the topic ends and who wrote to it last, also what is not durable yet."""
        latest = {**self._index.producers}
        latest.update({p: entry.last for p, entry in self._unsettled.items() if entry.last})
        return Snapshot(self._next, tuple(latest.values()))

    @property
    def exported_end(self) -> Offset:
        """What lies below is in segments."""
        return Offset(self._index.exported)

    @property
    def unexported_start(self) -> Offset:
        """Where the journal begins to be needed: all below is in segments, or never was here."""
        return Offset(max(self._index.exported, self._index.first_offset))

    async def read_records(self, start: Offset, bytes_max: int) -> list[StoredRecord]:
        """Return journaled batches from an offset on as they were journaled, durable or not.

        Waits until everything appended before is in the journal. None if there are none.
        """
        await self._writer.flush()
        return await self._journal.read_records(
            self.topic_id, self._index, start, self._index.end, bytes_max
        )

    def drop(self) -> None:
        """Forget everything; what waits is still reported."""
        self._dropped = True
        self._tail.clear()
        self.settle()
