"""Whether a table holds what its topic held: each offset once, none twice, none missing. Pure.

A table is looked at in parts, ranges of offsets of one partition, so that any size will do.
"""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

RANGES_MAX = 20
"""So many ranges of a kind are named, and the rest counted."""
KEPT_MAX = 1_000

Ranges = list[tuple[int, int]]
"""First and last offset of each."""


class PartFindings(Struct, frozen=True, kw_only=True):
    """What is wrong with one part of a table."""

    rows: int = 0
    dead_letters: int = 0
    missing: Ranges = []
    repeated: Ranges = []
    beyond: Ranges = []
    in_both: Ranges = []
    different: Ranges = []


class Finding(Struct, frozen=True, kw_only=True):
    """What is wrong with one partition's part of a table; offsets as `3` or `5-9`."""

    topic: str
    missing: list[str]
    repeated: list[str]
    beyond: list[str]
    """Offsets that the table should not have yet."""
    in_both: list[str]
    """Offsets in the table and among its dead letters."""
    different: list[str] = []
    """Offsets whose rows are not what their messages come to."""
    trouble: str | None = None
    """What keeps the table from being continued."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What came of looking at a table."""

    table: str
    rows: int
    dead_letters: int
    expected: int
    """Rows and dead letters there should be; of a table with a key, at most."""
    compared: int = 0
    """Rows that were compared with their messages."""
    findings: list[Finding]

    @property
    def is_exact(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


class Part(Struct, frozen=True, kw_only=True):
    """Offsets [low, high) of one partition, and what should be there: [start, next)."""

    low: int
    high: int
    start: int
    next: int


def check_places(part: Part, held: pa.Array, letters: pa.Array, *, may_lack: bool) -> PartFindings:
    """Compare the offsets that a table and its dead letters have within a part.

    `may_lack`: rows with a later one of the same key, and skipped messages, are not there.
    """
    low, high = max(part.low, part.start), min(part.high, part.next)
    counts = pc.value_counts(held)
    return PartFindings(
        rows=len(held),
        dead_letters=len(letters),
        missing=[] if may_lack else _missing(pa.concat_arrays([held, letters]), low, high),
        repeated=ranges_of(
            counts.field("values").filter(pc.greater(counts.field("counts"), 1)).to_pylist()
        ),
        beyond=ranges_of(held.filter(pc.greater_equal(held, part.next)).to_pylist()),
        in_both=ranges_of(held.filter(pc.is_in(held, letters)).to_pylist()),
    )


def conclude(
    topic: str, parts: Sequence[PartFindings], *, earliest: int, trouble: str | None = None
) -> Finding | None:
    """Join the parts of one partition; None: nothing is wrong.

    What is missing at the beginning and gone from the topic was gone when the table began.
    """
    missing = _joined(each.missing for each in parts)
    if missing and missing[0][1] < earliest:
        missing = missing[1:]
    found = Finding(
        topic=topic,
        missing=_texts(missing),
        repeated=_texts(_joined(each.repeated for each in parts)),
        beyond=_texts(_joined(each.beyond for each in parts)),
        in_both=_texts(_joined(each.in_both for each in parts)),
        different=_texts(_joined(each.different for each in parts)),
        trouble=trouble,
    )
    kinds = (found.missing, found.repeated, found.beyond, found.in_both, found.different)
    return found if any(kinds) or trouble is not None else None


def ranges_of(offsets: Iterable[int]) -> Ranges:
    """Return offsets as ranges, sorted; at most so many as are kept."""
    found: Ranges = []
    for offset in sorted(set(offsets)):
        if found and found[-1][1] == offset - 1:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return found[:KEPT_MAX]


def _missing(held: pa.Array, low: int, high: int) -> Ranges:
    there = pc.unique(held)
    there = there.filter(pc.and_(pc.greater_equal(there, low), pc.less(there, high)))
    if len(there) == max(0, high - low):
        return []
    gaps: Ranges = []
    due = low
    for offset in [*there.take(pc.sort_indices(there)).to_pylist(), high]:
        if offset > due:
            gaps.append((due, offset - 1))
        due = offset + 1
    return gaps[:KEPT_MAX]


def _joined(parts: Iterable[Ranges]) -> Ranges:
    found: Ranges = []
    for low, high in sorted(each for part in parts for each in part):
        if found and found[-1][1] + 1 >= low:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def _texts(ranges: Ranges) -> list[str]:
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in ranges[:RANGES_MAX]]
    more = len(ranges) - RANGES_MAX
    return [*texts, f"and {more} more"] if more > 0 else texts
