"""Conditions on rows that the source can apply itself: to which offsets, and row by row. Pure."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pydanube.spark.source.rows import Place

TimeBounds = tuple[int | None, int | None]
"""Earliest and latest publish_time in milliseconds, both included; None: not bounded."""
ANY_TIME: TimeBounds = (None, None)

Operator = Literal["=", "<", "<=", ">", ">=", "in", "prefix", "set"]

_COMPARED: tuple[Operator, ...] = ("=", "<", "<=", ">", ">=", "in", "set")
PUSHED: dict[str, tuple[Operator, ...]] = {
    "topic": _COMPARED,
    "partition": _COMPARED,
    "offset": _COMPARED,
    "publish_time": _COMPARED,
    "routing_key": ("=", "in", "prefix", "set"),
}
"""What can be applied exactly; everything else stays with Spark."""


class Condition(NamedTuple):
    """One condition; all of a read's conditions must hold. `set`: is not null."""

    column: str
    operator: Operator
    value: Any = None


def is_applied(condition: Condition) -> bool:
    """Tell whether rows that do not meet a condition never leave the source."""
    return condition.operator in PUSHED.get(condition.column, ())


def holds_for(conditions: Sequence[Condition], place: Place) -> bool:
    """Tell whether a physical topic may have rows at all."""
    known: dict[str, Any] = {"topic": place.topic, "partition": place.partition}
    return all(
        _compare(condition, known[condition.column])
        for condition in conditions
        if condition.column in known
    )


def clip(conditions: Sequence[Condition], start: int, end: int) -> tuple[int, int]:
    """Return the part of [start, end) whose offsets may meet the conditions."""
    for condition in conditions:
        if condition.column != "offset":
            continue
        match condition.operator:
            case "=":
                start, end = max(start, condition.value), min(end, condition.value + 1)
            case "in":
                wanted = list(condition.value) or [end]
                start, end = max(start, min(wanted)), min(end, max(wanted) + 1)
            case ">=":
                start = max(start, condition.value)
            case ">":
                start = max(start, condition.value + 1)
            case "<":
                end = min(end, condition.value)
            case "<=":
                end = min(end, condition.value + 1)
            case _:
                continue
    return start, max(start, end)


def time_bounds(conditions: Sequence[Condition]) -> TimeBounds:
    """Return which publish_times can be wanted, so that others need not be read."""
    earliest: int | None = None
    latest: int | None = None
    for condition in conditions:
        if condition.column != "publish_time" or condition.operator == "set":
            continue
        values = condition.value if condition.operator == "in" else (condition.value,)
        if condition.operator in ("=", ">", ">=", "in") and values:
            low = _ms(min(values))
            earliest = low if earliest is None else max(earliest, low)
        if condition.operator in ("=", "<", "<=", "in") and values:
            high = _ms(max(values)) + 1  # Microseconds lie within a millisecond.
            latest = high if latest is None else min(latest, high)
    return earliest, latest


# pyarrow has no types.
def expression_of(conditions: Sequence[Condition], schema: pa.Schema) -> Any:  # noqa: ANN401
    """Return what keeps exactly the rows that are wanted; None if that is all of them."""
    expression = None
    for condition in conditions:
        part = _expression(condition, schema.field(condition.column).type)
        expression = part if expression is None else expression & part
    return expression


def _expression(condition: Condition, kind: pa.DataType) -> Any:  # noqa: ANN401
    field = pc.field(condition.column)
    match condition.operator:
        case "set":
            return field.is_valid()
        case "in":
            return field.isin(pa.array(list(condition.value), kind))
        case "prefix":
            return pc.starts_with(field, condition.value)
        case operator:
            return _COMPARISONS[operator](field, pa.scalar(condition.value, kind))


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda left, right: left == right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def _compare(condition: Condition, value: object) -> bool:
    match condition.operator:
        case "set":
            return True
        case "in":
            return value in condition.value
        case operator:
            return bool(_COMPARISONS[operator](value, condition.value))


def _ms(instant: datetime) -> int:
    return int(instant.timestamp() * 1000)
