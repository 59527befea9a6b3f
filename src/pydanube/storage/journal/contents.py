"""What the frames of a journal add up to: where batches lie, who sent them, all progress. Pure."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from pydanube.errors import InvalidRequest
from pydanube.model.ids import JournalPosition, Offset, ProducerId, SubscriptionId, TopicId
from pydanube.model.progress import Progress, ProgressChange
from pydanube.storage.errors import JournalContradiction, LostOffsets
from pydanube.storage.frames import FORMAT_VERSION, PREFIX_BYTES, Frame, FrameScan
from pydanube.storage.journal.known import Known, decode_note
from pydanube.storage.journal.producers import LastBatch, decode_producers
from pydanube.storage.journal.progress import FoldedProgress
from pydanube.storage.journal.records import (
    BATCH_FOLDED,
    BATCH_HEADER,
    FIRST_OF_SNAPSHOT,
    HERE,
    LAST_OF_SNAPSHOT,
    WHOLE_PROGRESS,
    WITH_PRODUCERS,
    FileHeader,
    Kind,
    Mirrored,
    Owned,
    Snapshot,
    decode_batch_header,
    decode_file_header,
    decode_mirrored,
    decode_owned,
    decode_progress,
    decode_snapshot,
    decode_whole_copy,
)

_NAME_DIGITS = 20


class JournalFile(Struct, kw_only=True, eq=False):
    """One file of the journal, in memory."""

    start: JournalPosition
    end: JournalPosition
    """The file's size is end - start; the newest file's end moves."""
    topics: set[TopicId]
    """Whose batches it holds."""
    synced: JournalPosition = JournalPosition(0)
    """What its last frame says: everything before this was synced."""
    last_kind: int = 0
    has_hole: bool = False
    prologue_whole: bool = False
    finished_ms: int = 0
    """When the next file was begun, or an upper bound of that; 0 for the newest file."""
    waiting: set[TopicId] | None = None
    """Of a finished file: whose batches are not all exported; None until somebody has looked."""

    @property
    def name(self) -> str:
        """The file's name in the journal's directory."""
        return log_name(self.start)


def log_name(start: int) -> str:
    """Return the name of the journal file that starts at this position."""
    return f"journal-{start:0{_NAME_DIGITS}}.log"


def index_name(start: int) -> str:
    """Return the name of that file's index."""
    return f"journal-{start:0{_NAME_DIGITS}}.index"


class Copy(Struct, frozen=True):
    """How much of another broker's topic a mirror has: a stream, up to a sequence."""

    stream: int
    sequence: int
    """NOT_WHOLE while its beginning is not complete."""


class TopicIndex:
    """Where a topic's batches lie, oldest first, and which offset comes next.

    Costs 20 bytes a batch. `end` is the end of the last batch; `next_offset` is beyond it only
    when bytes were lost behind that batch. What lies below `exported` is in segments.
    """

    __slots__ = (
        "bases",
        "copy",
        "end",
        "epoch",
        "exported",
        "last_file",
        "next_offset",
        "owned_at",
        "owned_from",
        "positions",
        "producers",
        "promised",
        "sizes",
    )

    def __init__(self, next_offset: int = 0) -> None:
        self.bases = array("Q")
        self.positions = array("Q")
        self.sizes = array("I")
        self.end = 0
        self.exported = 0
        self.next_offset = next_offset
        self.last_file: JournalFile | None = None
        self.producers: dict[ProducerId, LastBatch] = {}
        """The latest batch of everybody who numbers his batches."""
        self.epoch = 0
        """Of the ownership under which its batches were written; 0 without a cluster."""
        self.owned_from = 0
        self.owned_at: int = HERE
        """The offset and the position of the journal at which that ownership began."""
        self.copy: Copy | None = None
        """Set while that ownership is another broker's, of which this journal is a mirror."""
        self.promised = 0
        """Nothing of an epoch below it is taken any more."""

    @property
    def first_offset(self) -> Offset:
        """The oldest offset there is, or the next one if there is none."""
        return Offset(self.bases[0] if self.bases else self.next_offset)

    def add(self, base: int, count: int, position: int, size: int) -> None:
        """Enter the batch that now is the last one."""
        self.bases.append(base)
        self.positions.append(position)
        self.sizes.append(size)
        self.end = self.next_offset = base + count

    def find(self, offset: int) -> int:
        """Return the number of the last batch that begins at or before `offset`, at least 0."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    def holds(self, offset: int) -> bool:
        """Tell whether an offset lies between the first and the last batch."""
        return bool(self.bases) and self.bases[0] <= offset < self.end

    def bytes_from(self, offset: int) -> int:
        """Return the size of all batches from the one that holds `offset` on."""
        if offset >= self.end:
            return 0
        return sum(self.sizes[self.find(offset) :])

    def is_exported_before(self, position: int) -> bool:
        """Tell whether all batches that lie before a position of the journal are in segments."""
        number = bisect_left(self.positions, position)
        if number == 0:
            return True
        # Where a batch ends is told by the next one; if bytes were lost between, rather too late.
        end = self.bases[number] if number < len(self.bases) else self.end
        return end <= self.exported

    def own(self, owned: Owned) -> None:
        """Begin an ownership: what lies before it in the journal is not the topic's any more."""
        self.forget_before(owned.position)
        self.owned_at = owned.position
        self.copy = None
        if self.epoch != owned.epoch:
            self.epoch, self.owned_from = owned.epoch, owned.start
            if not self.bases:
                self.end = self.next_offset = owned.start

    def mirror(self, mirrored: Mirrored, position: int) -> None:
        """Take in what a MIRRORED record says that lies at a position."""
        self.promised = max(self.promised, mirrored.promised)
        if not mirrored.stream:
            return
        if self.epoch != mirrored.epoch:
            # Producers of before are known only if they are named again.
            self.producers = {}
            self.own(Owned(mirrored.topic_id, mirrored.epoch, mirrored.start, position))
        self.copy = Copy(mirrored.stream, mirrored.sequence)

    def mirrored(self, topic_id: TopicId) -> Mirrored | None:
        """Return what a MIRRORED record must say of it; None if there is no need for one."""
        if self.copy is None and self.promised <= self.epoch:
            return None
        copy = self.copy or Copy(0, 0)
        return Mirrored(
            topic_id=topic_id,
            epoch=self.epoch,
            start=Offset(self.owned_from),
            stream=copy.stream,
            sequence=copy.sequence,
            promised=self.promised,
        )

    def follow(self, epoch: int, exported: int) -> bool:
        """Take in how far segments reach, and under which epoch; tell whether that freed anything.

        What is in segments need not stay, nor anything of an epoch before the one that claimed
        them: it was recovered then.
        """
        end = self.end if epoch > self.epoch else min(exported, self.end)
        if end <= self.exported:
            return False
        self.exported = end
        return True

    def forget_before(self, position: int) -> None:
        """Forget the batches that lie before a position: they are read from segments now."""
        number = bisect_left(self.positions, position)
        del self.bases[:number], self.positions[:number], self.sizes[:number]


class EarlierTopic(Struct, frozen=True):
    """A topic whose id another topic has from a position of the journal on."""

    topic_id: TopicId
    until: JournalPosition
    index: TopicIndex


class JournalContents:
    """Folds frames, in the journal's order, into what they add up to.

    `floor` is the next offset of a topic without any record; it is above 0 while lost bytes may
    have held the only records of some topic.
    """

    def __init__(self, *, tells_apart: bool = False) -> None:
        self.earlier: list[EarlierTopic] | None = [] if tells_apart else None
        """Topics whose id was given to another one later; None where that ends the reading."""
        self.topics: dict[TopicId, TopicIndex] = {}
        self.progress: dict[SubscriptionId, FoldedProgress] = {}
        self.floor = 0
        self.header: FileHeader | None = None
        self.known = Known()
        self.lost: list[LostOffsets] = []
        self._snapshot_unbroken = False
        self._snapshot_producers: dict[TopicId, dict[ProducerId, LastBatch]] = {}
        # Topics whose next offset was raised by lost bytes, and what it was before.
        self._in_doubt: dict[TopicId, int] = {}
        self._holes_seen = False

    def topic(self, topic_id: TopicId) -> TopicIndex:
        """Return a topic's index; one without any record begins at the floor."""
        index = self.topics.get(topic_id)
        if index is None:
            index = self.topics[topic_id] = TopicIndex(self.floor)
        return index

    def fold(self, data: bytes, scan: FrameScan, file: JournalFile) -> None:
        """Take in every frame the scan finds in `data`."""
        # A restart runs this loop once per batch ever journaled: locals, and no call but C.
        topics, unpack, batch_kind = self.topics, BATCH_FOLDED.unpack_from, int(Kind.BATCH)
        frame_version, shortest, header_bytes = FORMAT_VERSION, BATCH_HEADER.size, PREFIX_BYTES
        frame: Frame | None = None
        for frame in scan:
            start, end = frame.start, frame.end
            if (
                frame.kind != batch_kind
                or frame.version != frame_version
                or end - start < shortest
                or self._in_doubt
            ):
                self._fold_any(data, frame, file)
                continue
            topic_id, base, count, flags = unpack(data, start)
            index = topics.get(topic_id)
            if index is None:
                index = self._first_batch(topic_id, base)
            elif base < index.end:
                index = self._contradicted(topic_id, base, index, frame.position)
            index.bases.append(base)
            index.positions.append(frame.position)
            index.sizes.append(end - start + header_bytes)
            index.end = index.next_offset = base + count
            if flags:
                _fold_stamp(index, data[start : start + shortest])
            if index.last_file is not file:
                index.last_file = file
                file.topics.add(topic_id)
        if frame is not None:
            file.synced = JournalPosition(max(frame.durable, file.start))
            file.last_kind = frame.kind

    def _fold_any(self, data: bytes, frame: Frame, file: JournalFile) -> None:
        if frame.version > FORMAT_VERSION:
            raise _from_the_future(f"frame version {frame.version}", frame.position)
        payload = data[frame.start : frame.end]
        match frame.kind:
            case Kind.BATCH if len(payload) >= BATCH_HEADER.size:
                self._fold_batch(payload, frame, file)
            case Kind.PROGRESS:
                self._fold_progress(payload, whole=bool(frame.flags & WHOLE_PROGRESS))
            case Kind.SNAPSHOT:
                self._fold_snapshot(decode_snapshot(payload), frame.flags, file)
            case Kind.PRODUCERS:
                self._fold_producers(payload, frame.flags)
            case Kind.OWNED:
                self._fold_owned(payload, frame)
            case Kind.MIRRORED:
                self._fold_mirrored(payload, frame)
            case Kind.KNOWN:
                self._fold_known(payload, frame)
            case Kind.FILE_HEADER:
                self._fold_header(decode_file_header(payload), file)
            case Kind.HOLE:
                self.fold_hole(frame.position, frame.position + PREFIX_BYTES + len(payload), file)
            case Kind.CLOSED | Kind.PADDING:
                pass
            case _:
                raise _from_the_future(f"frame kind {frame.kind}", frame.position)

    def _fold_batch(self, payload: bytes, frame: Frame, file: JournalFile) -> None:
        topic_id, base, count, flags = BATCH_FOLDED.unpack_from(payload)
        index = self.topics.get(topic_id)
        if index is None:
            index = self._first_batch(topic_id, base)
        elif base < index.end:
            index = self._contradicted(topic_id, base, index, frame.position)
        self._settle_doubt(topic_id, base)
        index.add(base, count, frame.position, len(payload) + PREFIX_BYTES)
        if flags:
            _fold_stamp(index, payload)
        index.last_file = file
        file.topics.add(topic_id)

    def _contradicted(
        self, topic_id: TopicId, base: int, index: TopicIndex, position: int
    ) -> TopicIndex:
        """Return the index of another topic with the same id, if two may be told apart here."""
        if self.earlier is None:
            raise JournalContradiction(
                TopicId(topic_id), base, index.end, JournalPosition(position)
            )
        self.earlier.append(EarlierTopic(topic_id, JournalPosition(position), index))
        index = self.topics[topic_id] = TopicIndex()
        return index

    def _first_batch(self, topic_id: TopicId, base: int) -> TopicIndex:
        if self._holes_seen and base > 0:
            self.lost.append(LostOffsets(topic_id, 0, base))
        index = self.topics[topic_id] = TopicIndex()
        return index

    def _fold_progress(self, payload: bytes, *, whole: bool) -> None:
        subscription_id, progress, _ = decode_progress(payload)
        if whole:
            self.progress[subscription_id] = FoldedProgress(progress)
            return
        folded = self.progress.get(subscription_id)
        if folded is None:
            # Its beginning is lost: rather delivered twice than not at all.
            folded = self.progress[subscription_id] = FoldedProgress(Progress(Offset(0)))
        folded.apply(ProgressChange(progress.settled, progress.attempts))

    def _fold_producers(self, payload: bytes, flags: int) -> None:
        if flags & FIRST_OF_SNAPSHOT:
            self._begin_snapshot()
        for topic_id, last in decode_producers(payload):
            self.topic(topic_id).producers[last.stamp.producer_id] = last
            known = self._snapshot_producers.setdefault(topic_id, {})
            known[last.stamp.producer_id] = last

    def _fold_owned(self, payload: bytes, frame: Frame) -> None:
        if frame.flags & FIRST_OF_SNAPSHOT:
            self._begin_snapshot()
        for owned in decode_owned(payload):
            index = self.topic(owned.topic_id)
            if owned.position == HERE:
                # Producers of before are known only if they are named again.
                index.producers = {}
                index.own(replace(owned, position=frame.position))
            else:
                index.own(owned)

    def _fold_mirrored(self, payload: bytes, frame: Frame) -> None:
        if frame.flags & FIRST_OF_SNAPSHOT:
            self._begin_snapshot()
        if frame.flags & WITH_PRODUCERS:
            mirrored, producers = decode_whole_copy(payload)
            index = self.topic(mirrored.topic_id)
            index.mirror(mirrored, frame.position)
            index.producers = {
                last.stamp.producer_id: last for _, last in decode_producers(producers)
            }
            return
        for mirrored in decode_mirrored(payload):
            self.topic(mirrored.topic_id).mirror(mirrored, frame.position)

    def _fold_known(self, payload: bytes, frame: Frame) -> None:
        if frame.flags & FIRST_OF_SNAPSHOT:
            self._begin_snapshot()
        note = decode_note(payload)
        self.known.add(note)
        for topic_id in note.gone_topics:
            index = self.topics.get(topic_id)
            if index is not None:
                # Its next offset stays: metadata of before the deletion bring the topic back.
                index.forget_before(frame.position)
                index.next_offset = max(index.next_offset, index.end)

    def _begin_snapshot(self) -> None:
        self._snapshot_unbroken = True
        self._snapshot_producers = {}

    def _fold_snapshot(self, part: Snapshot, flags: int, file: JournalFile) -> None:
        for topic_id, next_offset in part.next_offsets.items():
            self._settle_doubt(topic_id, next_offset)
            index = self.topic(topic_id)
            index.next_offset = max(index.end, next_offset)
        for subscription_id, progress in part.progress.items():
            self.progress[subscription_id] = FoldedProgress(progress)
        if flags & FIRST_OF_SNAPSHOT:
            self._begin_snapshot()
        if flags & LAST_OF_SNAPSHOT and self._snapshot_unbroken:
            self._snapshot_unbroken = False
            self.floor = part.floor
            # Whom a whole snapshot does not name had been forgotten by then.
            for topic_id, index in self.topics.items():
                index.producers = self._snapshot_producers.get(topic_id, {})
            file.prologue_whole = True
            # A topic that a whole snapshot does not name was gone by then.
            self.lost = self.lost_offsets()
            self._in_doubt.clear()

    def _fold_header(self, header: FileHeader, file: JournalFile) -> None:
        if self.header is not None and self.header.journal != header.journal:
            raise InvalidRequest(
                f"{file.name} belongs to journal {header.journal}, the files before it to "
                f"{self.header.journal}; move the files that do not belong here elsewhere"
            )
        self.header = header

    def fold_hole(self, start: int, end: int, file: JournalFile) -> None:
        """Take in that these bytes are lost: no topic's next offset may be one they held."""
        size = end - start
        for topic_id, index in self.topics.items():
            self._in_doubt.setdefault(topic_id, index.next_offset)
            index.next_offset += size
        self.floor += size
        self._snapshot_unbroken = False
        self._holes_seen = True
        file.has_hole = True

    def _settle_doubt(self, topic_id: TopicId, continued_at: int) -> None:
        before = self._in_doubt.pop(topic_id, None)
        if before is not None and before < continued_at:
            self.lost.append(LostOffsets(topic_id, before, continued_at))

    def lost_offsets(self) -> list[LostOffsets]:
        """Return what lost bytes may have held, as far as the frames tell."""
        unsettled = [LostOffsets(topic, before, None) for topic, before in self._in_doubt.items()]
        return self.lost + unsettled

    def snapshot(self) -> Snapshot:
        """Return what a new file must know of all files before it."""
        return Snapshot(
            self.floor,
            {topic_id: index.next_offset for topic_id, index in self.topics.items()},
            {sub: folded.whole() for sub, folded in self.progress.items()},
            {topic_id: index.producers for topic_id, index in self.topics.items()},
            tuple(
                Owned(topic_id, index.epoch, Offset(index.owned_from), index.owned_at)
                for topic_id, index in self.topics.items()
                if index.epoch
            ),
            tuple(
                mirrored
                for topic_id, index in self.topics.items()
                if (mirrored := index.mirrored(topic_id)) is not None
            ),
            tuple(self.known.notes()),
        )

    def keep_only(self, topics: Iterable[TopicId], subscriptions: Iterable[SubscriptionId]) -> None:
        """Forget all others. What exists without a record may have lost it, while in doubt."""
        kept_topics, kept_subscriptions = set(topics), set(subscriptions)
        self.known.saw(self.topics, self.progress)
        self.known.keep_only(kept_topics, kept_subscriptions)
        for topic_id in self.topics.keys() - kept_topics:
            del self.topics[topic_id]
        for subscription_id in self.progress.keys() - kept_subscriptions:
            del self.progress[subscription_id]
        if self.floor == 0:
            return
        for topic_id in kept_topics:
            self.topic(topic_id)
        for subscription_id in kept_subscriptions - self.progress.keys():
            self.progress[subscription_id] = FoldedProgress(Progress(Offset(0)))
        self.floor = 0


def _fold_stamp(index: TopicIndex, payload: bytes) -> None:
    header = decode_batch_header(payload)
    if header.stamp is not None:
        index.producers[header.stamp.producer_id] = LastBatch(
            stamp=header.stamp, base=header.base, count=header.count, time_ms=header.time_ms
        )


def _from_the_future(what: str, position: int) -> InvalidRequest:
    return InvalidRequest(
        f"the journal has {what} at position {position}, which this version does not know; "
        "start the version of PyDanube that wrote it, or a later one"
    )
