"""When a message may be delivered, and until when. Judged by columns, never row by row."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.model.arrow import without
from pydanube.model.message import DELIVER_AFTER, DELIVER_AT, TTL

TIMING_ATTRIBUTES = (DELIVER_AT, DELIVER_AFTER, TTL)
MILLISECONDS_MAX = 2**53 - 1

with without("pandas"):
    _NAMES = pa.array(TIMING_ATTRIBUTES)
_DIGITS_MAX = 16


class RowTiming(Struct, frozen=True, gc=False):
    """A row with attributes about its time."""

    row: int
    due_ms: int
    """Not to be delivered before; 0 if at once."""
    ttl_ms: int | None


class HeldBack(Struct, frozen=True, gc=False):
    """Rows that must not be sent now: they are due later, or never again if `due_ms` is None."""

    first_row: int
    end_row: int
    due_ms: int | None


def check_timing(attributes: Mapping[str, str]) -> None:
    """Refuse attributes about time that mean nothing."""
    for name in TIMING_ATTRIBUTES:
        value = attributes.get(name)
        if value is not None and _milliseconds(value) is None:
            raise InvalidRequest(
                f"attribute {name} must be a number of milliseconds from 0 to {MILLISECONDS_MAX}, "
                f"not {value[:40]!r}"
            )


def check_timing_column(attributes: pa.MapArray) -> None:
    """Refuse a column with attributes about time that mean nothing."""
    if attributes.null_count == len(attributes):
        return
    known = pc.index_in(attributes.keys, value_set=_NAMES)
    if known.null_count == len(known):
        return
    places = pc.indices_nonzero(pc.is_valid(known))
    numbers: list[int] = known.take(places).to_pylist()
    values: list[str | None] = attributes.items.take(places).to_pylist()
    for number, value in zip(numbers, values, strict=True):
        check_timing({TIMING_ATTRIBUTES[number]: value or ""})


def row_timings(attributes: pa.MapArray, times: pa.Int64Array) -> tuple[RowTiming, ...]:
    """Return the rows that have such attributes; values that mean nothing count as absent."""
    if attributes.null_count == len(attributes):
        return ()
    keys = attributes.keys
    known = pc.index_in(keys, value_set=_NAMES)
    if known.null_count == len(known):
        return ()
    places = pc.indices_nonzero(pc.is_valid(known))
    numbers: list[int] = known.take(places).to_pylist()
    values: list[str | None] = attributes.items.take(places).to_pylist()
    ends: list[int] = attributes.offsets.to_pylist()[1:]
    found: list[RowTiming] = []
    row = 0
    given: dict[str, int] = {}
    for place, number, text in zip(places.to_pylist(), numbers, values, strict=True):
        while place >= ends[row]:
            _add(found, row, given, times)
            given = {}
            row += 1
        value = _milliseconds(text or "")
        if value is not None:
            given[TIMING_ATTRIBUTES[number]] = value
    _add(found, row, given, times)
    return tuple(found)


def _add(found: list[RowTiming], row: int, given: Mapping[str, int], times: pa.Int64Array) -> None:
    if not given:
        return
    due_ms = given.get(DELIVER_AT, 0)
    if DELIVER_AFTER in given:
        due_ms = max(due_ms, times[row].as_py() + given[DELIVER_AFTER])
    found.append(RowTiming(row, due_ms, given.get(TTL)))


def held_back(
    timings: Sequence[RowTiming],
    times: pa.Int64Array,
    first_row: int,
    end_row: int,
    *,
    now_ms: int,
    ttl_ms: int | None,
) -> list[HeldBack]:
    """Return the rows of [first_row, end_row) that must not be sent now, in order.

    `ttl_ms` is the topic's policy; of two times to live the shorter one counts.
    """
    held: dict[int, int | None] = {}
    if ttl_ms is not None:
        held = dict.fromkeys(_older(times, first_row, end_row, now_ms - ttl_ms))
    start = bisect_left(timings, first_row, key=_row)
    for timing in timings[start : bisect_left(timings, end_row, key=_row)]:
        if timing.row in held:
            continue
        if timing.ttl_ms is not None and times[timing.row].as_py() + timing.ttl_ms <= now_ms:
            held[timing.row] = None
        elif timing.due_ms > now_ms:
            held[timing.row] = timing.due_ms
    return _runs(held)


def _row(timing: RowTiming) -> int:
    return timing.row


def _older(times: pa.Int64Array, first_row: int, end_row: int, limit_ms: int) -> list[int]:
    """Return the rows that were published at that time or before."""
    part = times.slice(first_row, end_row - first_row)
    # Nearly always nothing is: then the smallest one tells.
    if pc.min(part).as_py() > limit_ms:
        return []
    old: list[int] = pc.indices_nonzero(pc.less_equal(part, limit_ms)).to_pylist()
    return [first_row + row for row in old]


def _runs(held: Mapping[int, int | None]) -> list[HeldBack]:
    runs: list[HeldBack] = []
    for row in sorted(held):
        due_ms = held[row]
        if runs and runs[-1].end_row == row and runs[-1].due_ms == due_ms:
            runs[-1] = HeldBack(runs[-1].first_row, row + 1, due_ms)
        else:
            runs.append(HeldBack(row, row + 1, due_ms))
    return runs


def _milliseconds(text: str) -> int | None:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        return None
    value = int(text)
    return value if value <= MILLISECONDS_MAX else None
