"""What a broker's journal holds of topics that other brokers own."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from enum import Enum

from msgspec import Struct
from typing_extensions import override

from pydanube.errors import Corruption, DanubeError, NotFound
from pydanube.model.ids import JournalPosition, Offset, SubscriptionId, TopicId
from pydanube.model.progress import Progress, ProgressChange
from pydanube.storage.errors import Fenced
from pydanube.storage.journal.contents import JournalContents, JournalFile, TopicIndex
from pydanube.storage.journal.producers import LastBatch, encode_producers
from pydanube.storage.journal.progress import FoldedProgress
from pydanube.storage.journal.reader import JournalReader, StoredRecord
from pydanube.storage.journal.records import (
    BATCH_HEADER,
    NOT_WHOLE,
    WHOLE_PROGRESS,
    WITH_PRODUCERS,
    Kind,
    Mirrored,
    decode_batch_header,
    decode_progress,
    encode_mirrored,
    encode_progress,
    encode_whole_copy,
)
from pydanube.storage.journal.writer import Entry, JournalWriter
from pydanube.storage.mirrors.stream import Record

_RESERVE_BYTES = 16 * 1024 * 1024
"""Marks and promises must get through when batches are refused already."""


class Whole(Struct, frozen=True, kw_only=True):
    """What makes a copy whole once it has the batches: as of a sequence of the owner's stream."""

    sequence: int
    producers: tuple[LastBatch, ...]
    progress: dict[SubscriptionId, Progress]
    """Of every subscription of the topic."""


class Section(Struct, frozen=True, kw_only=True):
    """Records of one topic that follow each other in its owner's stream."""

    topic_id: TopicId
    epoch: int
    stream: int
    before: int | None
    """The sequence before the first record; None: batches from the journal of an owner that
    brings the mirror up to date."""
    records: Sequence[Record] = ()
    whole: Whole | None = None
    """With this the copy is whole, if it has everything before."""


class Outcome(Enum):
    """What became of a section."""

    SYNCED = "synced"
    MISSING = "missing"
    """It does not follow what is there; the owner brings the mirror up to date."""
    FENCED = "fenced"
    """A later epoch has begun."""


class SectionAnswer(Struct, frozen=True, kw_only=True):
    """What became of a section, and what the mirror has now."""

    outcome: Outcome
    epoch: int
    """The latest that has begun or was promised to."""
    sequence: int | None
    end: Offset


class Holding(Struct, frozen=True, kw_only=True):
    """What a journal holds of a topic, durably."""

    promised: int
    epoch: int
    stream: int
    """0: the journal is the owner's own of that epoch."""
    sequence: int | None
    """None: it is not whole."""
    start: Offset
    end: Offset


class _Batch(Entry):
    """Another broker's batch on its way into the journal."""

    __slots__ = ("header", "index")

    def __init__(self, record: Record, header: bytes, index: TopicIndex) -> None:
        super().__init__(Kind.BATCH, record.parts, durability="fsync")
        self.header = header
        self.index = index

    @override
    def placed(self, position: JournalPosition, file: JournalFile) -> None:
        index, header = self.index, decode_batch_header(self.header)
        index.add(header.base, header.count, position, self.size)
        if header.stamp is not None:
            index.producers[header.stamp.producer_id] = LastBatch(
                stamp=header.stamp, base=header.base, count=header.count, time_ms=header.time_ms
            )
        if index.last_file is not file:
            index.last_file = file
            file.topics.add(header.topic_id)


class _Mark(Entry):
    """What holds of copies once everything queued before it is durable."""

    __slots__ = ("enter",)

    def __init__(
        self, payload: bytes, flags: int, enter: Callable[[JournalPosition], None]
    ) -> None:
        super().__init__(Kind.MIRRORED, (payload,), flags=flags, durability="fsync")
        self.enter = enter

    @override
    def placed(self, position: JournalPosition, file: JournalFile) -> None:
        self.enter(position)


class _Copy:
    """A topic of which this journal is a mirror, as it will be once all that is queued is."""

    def __init__(self, epoch: int, stream: int, start: int, index: TopicIndex) -> None:
        self.epoch = epoch
        self.stream = stream
        self.start = start
        self.index = index
        self.sequence: int | None = None
        self.end = start
        self.subscriptions: set[SubscriptionId] = set()


class MirrorLogs:
    """Takes the records of other brokers' topics, and gives them back to whoever owns these next.

    A topic that is mirrored here is neither served nor exported by this broker. An answer means
    that what it tells is synced.
    """

    def __init__(
        self,
        contents: JournalContents,
        writer: JournalWriter,
        reader: JournalReader,
        fence_log: Callable[[TopicId, DanubeError], None],
        freed: Callable[[], None],
    ) -> None:
        self._contents = contents
        self._writer = writer
        self._reader = reader
        self._fence_log = fence_log
        self._freed = freed
        self._copies: dict[TopicId, _Copy] = {}
        self._promises: dict[TopicId, int] = {}
        """Those given and perhaps not durable yet; and all that copies imply."""

    # Owners write.

    async def begin(
        self,
        topic_id: TopicId,
        epoch: int,
        stream: int,
        start: Offset,
        whole: Whole | None = None,
    ) -> Holding:
        """Become a mirror of a topic from an offset on, unless it is one; return what it has.

        With `whole` the copy is complete at once, as there is no batch yet; it takes the place of
        an earlier copy in one step. Raises Fenced if a later epoch has begun, or another stream of
        the same one.
        """
        self._check_epoch(topic_id, epoch, stream)
        copy = self._copy(topic_id)
        if copy is None or copy.epoch != epoch:
            copy = self._begin(topic_id, epoch, stream, start, whole)
        held = self._held(topic_id, copy)
        await self._writer.flush()
        return held

    def append(self, sections: Sequence[Section]) -> Awaitable[list[SectionAnswer]]:
        """Journal records at once, in the order of calls; the answers follow when it is synced.

        Raises Overloaded while too much waits for the disk: then nothing was taken.
        """
        self._writer.check(sum(record.size for one in sections for record in one.records))
        outcomes = [self._append(section) for section in sections]
        marks = [
            self._mark_of(section)
            for section, outcome in zip(sections, outcomes, strict=True)
            if outcome is Outcome.SYNCED and section.before is not None
        ]
        if marks:
            self._queue_marks(marks)
        return self._when_synced(
            [
                self._answer(section, outcome)
                for section, outcome in zip(sections, outcomes, strict=True)
            ]
        )

    async def _when_synced(self, answers: list[SectionAnswer]) -> list[SectionAnswer]:
        await self._writer.flush()
        return answers

    def _answer(self, section: Section, outcome: Outcome) -> SectionAnswer:
        copy = self._copies.get(section.topic_id)
        return SectionAnswer(
            outcome=outcome,
            epoch=self._latest(section.topic_id),
            sequence=copy.sequence if copy is not None else None,
            end=Offset(copy.end if copy is not None else 0),
        )

    def _begin(
        self, topic_id: TopicId, epoch: int, stream: int, start: Offset, whole: Whole | None
    ) -> _Copy:
        before = self._contents.topics.get(topic_id)
        index = TopicIndex()
        index.promised = max(before.promised if before is not None else 0, epoch)
        copy = _Copy(epoch, stream, start, index)
        old = self._copies.get(topic_id)
        if old is not None:
            copy.subscriptions = old.subscriptions
        mirrored = Mirrored(
            topic_id=topic_id,
            epoch=epoch,
            start=start,
            stream=stream,
            sequence=NOT_WHOLE,
            promised=index.promised,
        )
        if whole is not None:
            self._complete(copy, mirrored, whole)
        else:
            self._queue_mark(mirrored, copy)
        self._copies[topic_id] = copy
        self._promises[topic_id] = index.promised
        return copy

    def _complete(self, copy: _Copy, mirrored: Mirrored, whole: Whole) -> None:
        for subscription_id, progress in whole.progress.items():
            payload = encode_progress(subscription_id, progress)
            self._queue(Entry(Kind.PROGRESS, (payload,), flags=WHOLE_PROGRESS, durability="fsync"))
            self._contents.progress[subscription_id] = FoldedProgress(progress)
        for gone in copy.subscriptions - whole.progress.keys():
            self._contents.progress.pop(gone, None)
        copy.subscriptions = set(whole.progress)
        copy.sequence = whole.sequence
        producers = {last.stamp.producer_id: last for last in whole.producers}
        mirrored = _at(mirrored, whole.sequence)
        payload = encode_whole_copy(mirrored, encode_producers({mirrored.topic_id: producers}))

        def enter(position: JournalPosition) -> None:
            self._enter(mirrored, copy, position)
            copy.index.producers = dict(producers)

        self._queue(_Mark(payload, WITH_PRODUCERS, enter))

    def _append(self, section: Section) -> Outcome:
        copy = self._copy(section.topic_id)
        if self._latest(section.topic_id) > section.epoch:
            return Outcome.FENCED
        if copy is None or (copy.epoch, copy.stream) != (section.epoch, section.stream):
            return Outcome.MISSING
        records = section.records
        if section.before is not None:
            if copy.sequence is None or section.before > copy.sequence:
                return Outcome.MISSING
            records = records[copy.sequence - section.before :]
        for record in records:
            if not self._take(section.topic_id, copy, record):
                return Outcome.MISSING
        if section.before is not None and copy.sequence is not None:
            copy.sequence += len(records)
        whole = section.whole
        if whole is not None and (copy.sequence is None or copy.sequence < whole.sequence):
            self._complete(copy, self._mark_of(section), whole)
        return Outcome.SYNCED

    def _take(self, topic_id: TopicId, copy: _Copy, record: Record) -> bool:
        match record.kind:
            case Kind.BATCH:
                return self._take_batch(topic_id, copy, record)
            case Kind.PROGRESS:
                self._take_progress(copy, record)
                return True
            case _:
                raise Corruption(f"a record of kind {record.kind} has no place in a topic's stream")

    def _take_batch(self, topic_id: TopicId, copy: _Copy, record: Record) -> bool:
        head = bytes(record.parts[0][: BATCH_HEADER.size])
        if len(head) < BATCH_HEADER.size:
            raise Corruption(f"a batch of topic {topic_id} came without its header")
        header = decode_batch_header(head)
        if (header.topic_id, header.epoch) != (topic_id, copy.epoch):
            raise Corruption(
                f"a batch of topic {header.topic_id} and epoch {header.epoch} came as one of "
                f"{topic_id} and epoch {copy.epoch}"
            )
        end = header.base + header.count
        if end <= copy.end:
            return True  # It came while the mirror was brought up to date.
        if header.base < copy.end:
            return False
        # Numbers tell that no record is left out. So a gap means that what lies in it is in
        # segments: nothing of it was sent when this mirror, with less, was brought up to date.
        self._queue(_Batch(record, head, copy.index))
        copy.end = end
        return True

    def _take_progress(self, copy: _Copy, record: Record) -> None:
        self._queue(Entry(Kind.PROGRESS, record.parts, flags=record.flags, durability="fsync"))
        subscription_id, progress, _ = decode_progress(bytes(record.parts[0]))
        copy.subscriptions.add(subscription_id)
        folded = self._contents.progress.get(subscription_id)
        if record.flags & WHOLE_PROGRESS or folded is None:
            self._contents.progress[subscription_id] = FoldedProgress(progress)
        else:
            folded.apply(ProgressChange(progress.settled, progress.attempts))

    def _mark_of(self, section: Section) -> Mirrored:
        copy = self._copies[section.topic_id]
        return Mirrored(
            topic_id=section.topic_id,
            epoch=copy.epoch,
            start=Offset(copy.start),
            stream=copy.stream,
            sequence=NOT_WHOLE if copy.sequence is None else copy.sequence,
            promised=self._latest(section.topic_id),
        )

    def _queue_marks(self, marks: Iterable[Mirrored]) -> None:
        entered = [(mark, self._copies[mark.topic_id]) for mark in marks]

        def enter(position: JournalPosition) -> None:
            for mark, copy in entered:
                self._enter(mark, copy, position)

        for payload in encode_mirrored(mark for mark, _ in entered):
            self._queue(_Mark(payload, 0, enter))

    def _queue_mark(self, mirrored: Mirrored, copy: _Copy) -> None:
        (payload,) = encode_mirrored([mirrored])
        self._queue(_Mark(payload, 0, lambda position: self._enter(mirrored, copy, position)))

    def _enter(self, mirrored: Mirrored, copy: _Copy, position: JournalPosition) -> None:
        # Not before: a new file's prologue must not know of what can still be lost.
        if self._copies.get(mirrored.topic_id) is copy:
            self._contents.topics[mirrored.topic_id] = copy.index
        copy.index.mirror(mirrored, position)

    def _queue(self, entry: Entry) -> None:
        self._writer.queue(entry, reserve_bytes=_RESERVE_BYTES)

    # New owners ask.

    async def fence(self, topic_id: TopicId, epoch: int) -> Holding:
        """Promise to take nothing of an earlier epoch any more; return what is there.

        Raises Fenced if the promise was given to a later one. A topic that is served here under an
        earlier epoch acknowledges nothing from now on.
        """
        latest = self._latest(topic_id)
        if latest > epoch:
            raise Fenced(f"topic {topic_id} has been taken over with epoch {latest}")
        if latest < epoch:
            self._fence_log(topic_id, Fenced(f"topic {topic_id} is taken over with epoch {epoch}"))
            self._promises[topic_id] = epoch
            self._queue_promise(topic_id, epoch)
        copy = self._copy(topic_id)
        held = self._held(topic_id, copy) if copy is not None else None
        await self._writer.flush()
        return held or self._held_as_owner(topic_id)

    def _queue_promise(self, topic_id: TopicId, epoch: int) -> None:
        promise = Mirrored(
            topic_id=topic_id, epoch=0, start=Offset(0), stream=0, sequence=0, promised=epoch
        )
        (payload,) = encode_mirrored([promise])
        copy = self._copies.get(topic_id)

        def enter(position: JournalPosition) -> None:
            if copy is not None:
                copy.index.mirror(promise, position)
            else:
                self._contents.topic(topic_id).mirror(promise, position)

        self._queue(_Mark(payload, 0, enter))

    def _held(self, topic_id: TopicId, copy: _Copy) -> Holding:
        """Return what a copy has, as it is once all that is queued by now is synced."""
        return Holding(
            promised=self._latest(topic_id),
            epoch=copy.epoch,
            stream=copy.stream,
            sequence=copy.sequence,
            start=Offset(copy.start),
            end=Offset(copy.end),
        )

    def _held_as_owner(self, topic_id: TopicId) -> Holding:
        index = self._contents.topics.get(topic_id) or TopicIndex()
        return Holding(
            promised=self._latest(topic_id),
            epoch=index.epoch,
            stream=0,
            sequence=0 if index.epoch else None,
            start=Offset(index.owned_from),
            end=Offset(max(index.next_offset, index.owned_from)),
        )

    async def read(
        self, topic_id: TopicId, epoch: int, start: Offset, bytes_max: int
    ) -> list[StoredRecord]:
        """Return batches of an epoch from an offset on, about so many bytes; none behind the last.

        Raises NotFound when the journal holds another epoch.
        """
        index = self._contents.topics.get(topic_id)
        if index is None or index.epoch != epoch:
            raise NotFound(f"the journal holds nothing of topic {topic_id} and epoch {epoch}")
        if index.bases and index.positions[-1] >= self._writer.written:
            await self._writer.flush()
        return await self._reader.read_records(topic_id, index, start, index.end, bytes_max)

    def producers(self, topic_id: TopicId) -> list[LastBatch]:
        """Return the latest batches of a topic's producers."""
        index = self._contents.topics.get(topic_id)
        return list(index.producers.values()) if index is not None else []

    def progress(self, subscriptions: Collection[SubscriptionId]) -> dict[SubscriptionId, Progress]:
        """Return the progress of those of the subscriptions that have any."""
        held = self._contents.progress
        return {one: held[one].whole() for one in subscriptions if one in held}

    # Keeping house.

    def topics(self) -> list[TopicId]:
        """Return the topics of which this journal is a mirror."""
        return [
            topic_id for topic_id, index in self._contents.topics.items() if index.copy is not None
        ]

    def follow(self, topic_id: TopicId, epoch: int, exported: Offset) -> None:
        """Take in how far the catalogue reaches, and under which epoch. The promise stays."""
        index = self._contents.topics.get(topic_id)
        if index is not None and index.copy is not None and index.follow(epoch, exported):
            self._freed()

    def leave(self, topic_id: TopicId, epoch: int) -> None:
        """Mirror a topic no more, for it is this broker's own from an epoch on.

        Raises Fenced if a later one has begun, or was promised to.
        """
        latest = self._latest(topic_id)
        if latest > epoch:
            raise Fenced(f"topic {topic_id} has been taken over with epoch {latest}")
        self.forget(topic_id)

    def forget(self, topic_id: TopicId) -> None:
        """Forget a topic that is gone."""
        self._copies.pop(topic_id, None)
        self._promises.pop(topic_id, None)

    def _copy(self, topic_id: TopicId) -> _Copy | None:
        copy = self._copies.get(topic_id)
        if copy is not None:
            return copy
        index = self._contents.topics.get(topic_id)
        if index is None or index.copy is None:
            return None
        copy = _Copy(index.epoch, index.copy.stream, index.owned_from, index)
        copy.sequence = None if index.copy.sequence == NOT_WHOLE else index.copy.sequence
        copy.end = max(index.next_offset, index.owned_from)
        self._copies[topic_id] = copy
        return copy

    def _latest(self, topic_id: TopicId) -> int:
        """Return the latest epoch that has begun or was promised to."""
        index = self._contents.topics.get(topic_id)
        held = max(index.epoch, index.promised) if index is not None else 0
        return max(held, self._promises.get(topic_id, 0))

    def _check_epoch(self, topic_id: TopicId, epoch: int, stream: int) -> None:
        latest = self._latest(topic_id)
        if latest > epoch:
            raise Fenced(f"topic {topic_id} has been taken over with epoch {latest}")
        index = self._contents.topics.get(topic_id)
        copy = self._copy(topic_id)
        if copy is None and index is not None and index.epoch == epoch:
            raise Fenced(f"topic {topic_id} is this broker's own under epoch {epoch}")
        if copy is not None and copy.epoch == epoch and copy.stream != stream:
            raise Fenced(
                f"epoch {epoch} of topic {topic_id} has begun with another stream: an owner that "
                "starts again takes the topic over with a new epoch"
            )


def _at(mirrored: Mirrored, sequence: int) -> Mirrored:
    return Mirrored(
        topic_id=mirrored.topic_id,
        epoch=mirrored.epoch,
        start=mirrored.start,
        stream=mirrored.stream,
        sequence=sequence,
        promised=mirrored.promised,
    )
