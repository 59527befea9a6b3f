"""Which objects without an entry may be deleted: all but the last to hold a message. Pure.

Most are attempts that ended before the catalogue knew, or what was replaced. But the catalogue may
be an older copy: then such an object can hold messages that nothing else has.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence, Set

from msgspec import Struct

from pydanube.model.ids import Offset
from pydanube.storage.segments.catalog import SegmentEntry, bounds_of


class Journaled(Struct, frozen=True):
    """Which offsets of a topic the journal holds: [first, end)."""

    first: Offset
    end: Offset


def plan_sweep(
    found: Iterable[str],
    wanted: Set[str],
    entries: Sequence[SegmentEntry],
    start: Offset,
    journaled: Journaled,
) -> tuple[list[str], list[str]]:
    """Return which objects may go, and which have no entry and stay.

    `found` is all there is in the topic's directory, `start` the first offset that has not expired.
    """
    present = set(found)
    going, staying = [], []
    for key in sorted(present - wanted):
        bounds = bounds_of(key)
        if bounds is None or _is_elsewhere(*bounds, present, entries, start, journaled):
            going.append(key)
        else:
            staying.append(key)
    return going, staying


def _is_elsewhere(
    base: Offset,
    end: Offset,
    present: Set[str],
    entries: Sequence[SegmentEntry],
    start: Offset,
    journaled: Journaled,
) -> bool:
    at = max(base, start)
    while at < end:
        if journaled.first <= at and end <= journaled.end:
            return True
        number = bisect_right(entries, at, key=lambda entry: entry.base) - 1
        if number < 0 or at >= entries[number].end or entries[number].key not in present:
            return False
        at = entries[number].end
    return True
