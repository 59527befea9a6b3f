"""Rebuilds a topic's catalogue entries from the objects that are there. Pure.

An object's name tells its offsets and epoch, its footer the topic, and its bytes all the rest.
"""

from collections.abc import Iterable, Sequence, Set

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.errors import Corruption
from pydanube.model.ids import Offset
from pydanube.storage.segments.catalog import SegmentEntry, bounds_of, entry_for, epoch_of
from pydanube.storage.segments.decoding import read_layout
from pydanube.storage.segments.encoding import (
    SCHEMA_IDS_MAX,
    EncodedSegment,
    SegmentOrigin,
    checksum,
)


class Link(Struct, frozen=True):
    """Offsets [base, end) of a topic, in an entry that is known or in an object without one."""

    base: Offset
    end: Offset
    entry: SegmentEntry | None = None
    key: str = ""


class Chain(Struct, frozen=True):
    """Entries and objects side by side, from the first offset that is kept to the last."""

    start: Offset
    links: tuple[Link, ...]
    missing: tuple[SegmentEntry, ...]
    """Entries whose object is not there, and no other object holds it all."""

    @property
    def end(self) -> Offset:
        """The offset that follows."""
        return self.links[-1].end if self.links else self.start

    def new(self) -> list[Link]:
        """Return the objects that need an entry."""
        return [link for link in self.links if link.entry is None]


def plan_chain(
    found: Iterable[str], entries: Sequence[SegmentEntry], start: Offset | None
) -> Chain:
    """Return the longest chain that objects and entries make; known entries come first.

    `start` is the first offset that is kept, None for a topic without a catalogue.
    """
    present = set(found)
    loose = _loose(present, entries)
    known = {entry.base: entry for entry in entries}
    if start is None:
        start = min((link.base for link in loose), default=Offset(0))
    links: list[Link] = []
    missing: list[SegmentEntry] = []
    at = start
    while True:
        link = _next_link(at, known, loose, present, missing)
        if link is None:
            return Chain(start, tuple(links), tuple(missing))
        links.append(link)
        at = link.end


def _next_link(
    at: Offset,
    known: dict[Offset, SegmentEntry],
    loose: Sequence[Link],
    present: Set[str],
    missing: list[SegmentEntry],
) -> Link | None:
    entry = known.get(at)
    if entry is not None and entry.key in present:
        return Link(entry.base, entry.end, entry)
    longest = max((link for link in loose if link.base == at), key=_reach, default=None)
    if longest is not None:
        return longest
    if entry is None:
        return None
    if not entry.is_lost:
        missing.append(entry)
    return Link(entry.base, entry.end, entry)


def _loose(present: Set[str], entries: Sequence[SegmentEntry]) -> list[Link]:
    named = {entry.key for entry in entries}
    loose = []
    for key in sorted(present - named):
        bounds = bounds_of(key)
        if bounds is not None and bounds[1] > bounds[0]:
            loose.append(Link(*bounds, key=key))
    return loose


def _reach(link: Link) -> tuple[int, int]:
    return link.end, epoch_of(link.key) or 0


def entry_from_object(
    origin: SegmentOrigin, link: Link, data: bytes, created_ms: int
) -> SegmentEntry:
    """Return the entry of an object, all of whose rows were read; Corruption if it is damaged.

    It takes milliseconds per megabyte, so it is called where nobody waits.
    """
    rows = link.end - link.base
    try:
        layout = read_layout(data, len(data), topic_id=origin.topic_id, base=link.base, rows=rows)
        times: list[int] = []
        schema_ids: set[int] = set()
        for number, group in enumerate(layout.groups):
            part = data[group.position : group.position + group.size]
            columns = ["offset", "publish_time", "schema_id", "payload"]
            table = layout.stored(number, part, columns)
            span = pc.min_max(table.column("publish_time").cast(pa.int64()))
            times += (span["min"].as_py(), span["max"].as_py())
            present = pc.unique(table.column("schema_id").drop_null())
            schema_ids.update(each % 2**64 for each in present.to_pylist())
    except Corruption as error:
        raise Corruption(f"object {link.key} is no segment of {origin.topic}: {error}") from error
    file = pa.py_buffer(data)
    groups = layout.groups
    tail = file.slice(groups[-1].position + groups[-1].size)
    segment = EncodedSegment(
        data=data,
        base=link.base,
        end=link.end,
        raw_bytes=sum(group.raw_size for group in groups),
        crc32c=checksum(file),
        min_time_ms=min(times),
        max_time_ms=max(times),
        schema_ids=tuple(sorted(schema_ids)) if len(schema_ids) <= SCHEMA_IDS_MAX else None,
        group_crc32c=tuple(checksum(file.slice(each.position, each.size)) for each in groups),
        tail_bytes=len(tail),
        tail_crc32c=checksum(tail),
    )
    return entry_for(origin, link.key, segment, created_ms)
