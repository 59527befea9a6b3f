"""Whether a table holds what its topic held: each offset once, none twice, none missing. Pure."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.spark.source.rows import Place
from pydanube.tables.state import Positions

RANGES_MAX = 20


class Finding(Struct, frozen=True, kw_only=True):
    """What is wrong with one partition's part of a table; offsets as `3` or `5-9`."""

    topic: str
    missing: list[str]
    repeated: list[str]
    beyond: list[str]
    """Offsets that the table should not have yet."""
    in_both: list[str]
    """Offsets in the table and among its dead letters."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What came of looking at a table."""

    table: str
    rows: int
    dead_letters: int
    expected: int
    """Rows and dead letters there should be; of a table with a key, at most."""
    findings: list[Finding]

    @property
    def is_exact(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def verify(
    table: str,
    positions: Positions,
    starts: Mapping[str, int],
    rows: pa.Table,
    dead: pa.Table,
    *,
    may_lack: bool,
) -> Verdict:
    """Compare the places in a table, columns partition and offset, with its positions.

    `may_lack`: rows with a later one of the same key, and skipped messages, are not there.
    """
    findings = []
    expected = 0
    for name, position in sorted(positions.items()):
        number = Place.of(name).partition
        start = starts.get(name, 0)
        expected += position.next - start
        held, letters = _offsets(rows, number), _offsets(dead, number)
        both = pa.concat_arrays([held, letters])
        counts = pc.value_counts(held)
        finding = Finding(
            topic=name,
            missing=[] if may_lack else _missing(both, start, position.next),
            repeated=_ranges(counts.field("values").filter(pc.greater(counts.field("counts"), 1))),
            beyond=_ranges(held.filter(pc.greater_equal(held, position.next))),
            in_both=_ranges(held.filter(pc.is_in(held, letters))),
        )
        if finding.missing or finding.repeated or finding.beyond or finding.in_both:
            findings.append(finding)
    return Verdict(
        table=table,
        rows=len(rows),
        dead_letters=len(dead),
        expected=expected,
        findings=findings,
    )


def _offsets(rows: pa.Table, partition: int) -> pa.Array:
    chosen = rows.filter(pc.equal(rows.column("partition"), partition))
    found = chosen.column("offset").combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


def _missing(held: pa.Array, start: int, end: int) -> list[str]:
    there = pc.unique(held).take(pc.sort_indices(pc.unique(held))).to_pylist()
    gaps: list[tuple[int, int]] = []
    due = start
    for offset in [*(each for each in there if start <= each < end), end]:
        if offset > due:
            gaps.append((due, offset - 1))
        due = offset + 1
    return _texts(gaps)


def _ranges(offsets: pa.Array) -> list[str]:
    found: list[tuple[int, int]] = []
    for offset in sorted(set(offsets.to_pylist())):
        if found and found[-1][1] == offset - 1:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return _texts(found)


def _texts(ranges: Sequence[tuple[int, int]]) -> list[str]:
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in ranges[:RANGES_MAX]]
    more = len(ranges) - RANGES_MAX
    return [*texts, f"and {more} more"] if more > 0 else texts
