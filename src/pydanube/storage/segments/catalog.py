"""Which segments a topic has: the entries, their laws, and the door to wherever they are kept.

The laws are those of docs/formats/segment.md, section 3. They are checked here, so that every
catalogue keeps the same ones.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from msgspec import Struct

from pydanube.errors import Conflict
from pydanube.model.ids import Offset, TopicId
from pydanube.storage.errors import Fenced
from pydanube.storage.segments.encoding import EncodedSegment, SegmentOrigin

_OFFSET_DIGITS = 20


class SegmentEntry(Struct, frozen=True, kw_only=True):
    """One segment: offsets [base, end) of a topic, and the object that holds them."""

    key: str
    """Of the object below the store's root; empty when the messages are lost."""
    topic: str
    topic_id: TopicId
    base: Offset
    end: Offset
    rows: int
    bytes: int
    raw_bytes: int
    crc32c: int
    min_time_ms: int
    max_time_ms: int
    epoch: int
    schema_ids: tuple[int, ...] | None
    created_ms: int
    group_crc32c: tuple[int, ...] = ()
    tail_bytes: int = 0
    tail_crc32c: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether these offsets hold nothing, because the journal's bytes were damaged."""
        return not self.key


class Frontier(Struct, frozen=True, kw_only=True):
    """How far a topic's entries reach: [start, end), without a gap."""

    topic_id: TopicId
    start: Offset
    end: Offset
    epoch: int


class Retired(Struct, frozen=True):
    """An object, or a directory ending in "/", that is to be deleted at `due_ms`."""

    due_ms: int
    key: str


class SegmentCatalog(Protocol):
    """Keeps entries durably; every change is one transaction, refused as a whole.

    Reads answer at once. Changes raise Conflict when they break a law or another writer was
    faster, Fenced when a later owner has taken over, and Unavailable when nothing can be written:
    then they may have happened, and the caller looks again.
    """

    def frontier(self, topic: str, topic_id: TopicId) -> Frontier | None:
        """Return how far the entries reach; None if the topic never had any."""

    def entries(self, topic: str, topic_id: TopicId) -> list[SegmentEntry]:
        """Return a topic's entries in offset order, all at one version."""

    async def claim(self, origin: SegmentOrigin) -> None:
        """Take the topic over: from now on, older epochs are refused."""

    async def add(self, origin: SegmentOrigin, entry: SegmentEntry) -> None:
        """Add the entry that follows the last one."""

    async def replace(
        self, origin: SegmentOrigin, run: Sequence[SegmentEntry], by: SegmentEntry, due_ms: int
    ) -> None:
        """Put one entry in the place of neighbouring ones; their objects go at `due_ms`."""

    async def expire(
        self, origin: SegmentOrigin, entries: Sequence[SegmentEntry], due_ms: int
    ) -> None:
        """Remove the oldest entries; their objects go at `due_ms`."""

    async def remove_topic(self, topic: str, topic_id: TopicId, due_ms: int) -> None:
        """Remove all of a topic, which is being deleted; may be repeated."""

    def retired(self) -> list[Retired]:
        """Return what is to be deleted, in the order in which it is due."""

    async def forget(self, retired: Retired) -> None:
        """Take note that it has been deleted."""


def directory_of(topic: str, topic_id: TopicId) -> str:
    """Return the directory below the root that holds one life of a topic, ending in "/"."""
    return f"{topic.removeprefix('/')}/{topic_id}/"


def object_key(origin: SegmentOrigin, base: Offset, end: Offset, token: int) -> str:
    """Return the name of a new segment; a token is drawn for every attempt to write it."""
    name = f"{base:0{_OFFSET_DIGITS}}-{end:0{_OFFSET_DIGITS}}-{origin.epoch}-{token:016x}.parquet"
    return directory_of(origin.topic, origin.topic_id) + name


def epoch_of(key: str) -> int | None:
    """Return the epoch under which an object was written; None for a name of another form."""
    parts = key.rpartition("/")[2].split("-")
    return int(parts[2]) if len(parts) == 4 and parts[2].isdecimal() else None


def bounds_of(key: str) -> tuple[Offset, Offset] | None:
    """Return the offsets [base, end) an object's name tells; None for a name of another form."""
    parts = key.rpartition("/")[2].split("-")
    if len(parts) != 4 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return Offset(int(parts[0])), Offset(int(parts[1]))


def entry_for(
    origin: SegmentOrigin, key: str, segment: EncodedSegment, created_ms: int
) -> SegmentEntry:
    """Return the entry of a segment that has been written."""
    return SegmentEntry(
        key=key,
        topic=origin.topic,
        topic_id=origin.topic_id,
        base=segment.base,
        end=segment.end,
        rows=segment.end - segment.base,
        bytes=len(segment.data),
        raw_bytes=segment.raw_bytes,
        crc32c=segment.crc32c,
        min_time_ms=segment.min_time_ms,
        max_time_ms=segment.max_time_ms,
        epoch=origin.epoch,
        schema_ids=segment.schema_ids,
        created_ms=created_ms,
        group_crc32c=segment.group_crc32c,
        tail_bytes=segment.tail_bytes,
        tail_crc32c=segment.tail_crc32c,
    )


def lost_entry(origin: SegmentOrigin, base: Offset, end: Offset, created_ms: int) -> SegmentEntry:
    """Return the entry of offsets that hold nothing any more."""
    return SegmentEntry(
        key="",
        topic=origin.topic,
        topic_id=origin.topic_id,
        base=base,
        end=end,
        rows=0,
        bytes=0,
        raw_bytes=0,
        crc32c=0,
        min_time_ms=0,
        max_time_ms=0,
        epoch=origin.epoch,
        schema_ids=(),
        created_ms=created_ms,
    )


def check_owner(origin: SegmentOrigin, frontier: Frontier | None) -> None:
    """Refuse whoever is not the topic's owner any more."""
    if frontier is None:
        return
    if frontier.topic_id != origin.topic_id:
        raise Conflict(
            f"the segments of {origin.topic} belong to topic id {frontier.topic_id}, which was "
            f"deleted; this is {origin.topic_id}"
        )
    if frontier.epoch > origin.epoch:
        raise Fenced(
            f"topic {origin.topic} has been taken over with epoch {frontier.epoch}; "
            f"{origin.epoch} is over"
        )


def claimed(origin: SegmentOrigin, frontier: Frontier | None) -> Frontier | None:
    """Return the frontier under the new epoch; None if there is nothing to change."""
    check_owner(origin, frontier)
    if frontier is None:
        return None if origin.epoch == 0 else _fresh(origin, Offset(0))
    return None if frontier.epoch == origin.epoch else _moved(frontier, origin)


def after_add(origin: SegmentOrigin, frontier: Frontier | None, entry: SegmentEntry) -> Frontier:
    """Return the frontier with the entry added, or raise Conflict."""
    check_owner(origin, frontier)
    _check_entry(origin, entry)
    if frontier is None or _is_untouched(frontier):
        frontier = _fresh(origin, entry.base)
    if entry.base != frontier.end:
        raise Conflict(
            f"the segments of {origin.topic} end at {frontier.end}; one that begins at "
            f"{entry.base} cannot follow"
        )
    return _moved(frontier, origin, end=entry.end)


def after_replace(
    origin: SegmentOrigin, frontier: Frontier | None, run: Sequence[SegmentEntry], by: SegmentEntry
) -> Frontier:
    """Return the frontier after a run was replaced by one entry, or raise Conflict."""
    check_owner(origin, frontier)
    _check_entry(origin, by)
    assert run, "there is something to replace"
    same_range = (run[0].base, run[-1].end) == (by.base, by.end)
    same_rows = sum(entry.rows for entry in run) == by.rows
    if frontier is None or not is_contiguous(run) or not same_range or not same_rows:
        raise Conflict(f"a segment of {origin.topic} does not hold what it would replace")
    return _moved(frontier, origin)


def after_expiry(
    origin: SegmentOrigin, frontier: Frontier | None, entries: Sequence[SegmentEntry]
) -> Frontier:
    """Return the frontier after the oldest entries were removed, or raise Conflict."""
    check_owner(origin, frontier)
    assert entries, "there is something to remove"
    if frontier is None or entries[0].base != frontier.start or not is_contiguous(entries):
        raise Conflict(f"segments of {origin.topic} expire from the oldest on, without a gap")
    return _moved(frontier, origin, start=entries[-1].end)


def is_contiguous(entries: Sequence[SegmentEntry]) -> bool:
    """Tell whether each entry begins where the one before it ends."""
    return all(before.end == after.base for before, after in pairwise(entries))


def _check_entry(origin: SegmentOrigin, entry: SegmentEntry) -> None:
    rows = 0 if entry.is_lost else entry.end - entry.base
    if entry.end <= entry.base or entry.rows != rows:
        raise Conflict(
            f"a segment of {origin.topic} has {entry.rows} rows for [{entry.base}, {entry.end})"
        )
    if (entry.topic, entry.topic_id) != (origin.topic, origin.topic_id):
        raise Conflict(f"a segment of {entry.topic} does not belong to {origin.topic}")


def _is_untouched(frontier: Frontier) -> bool:
    """Tell whether it was made by a claim alone: then the first entry may begin anywhere."""
    return frontier.start == frontier.end == 0


def _fresh(origin: SegmentOrigin, start: Offset) -> Frontier:
    return Frontier(topic_id=origin.topic_id, start=start, end=start, epoch=origin.epoch)


def _moved(
    frontier: Frontier,
    origin: SegmentOrigin,
    *,
    start: Offset | None = None,
    end: Offset | None = None,
) -> Frontier:
    return Frontier(
        topic_id=frontier.topic_id,
        start=frontier.start if start is None else start,
        end=frontier.end if end is None else end,
        epoch=origin.epoch,
    )
