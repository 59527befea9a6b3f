"""Columns of other Arrow types as the columns of `model.batch.SCHEMA`, a whole column at a time.

Columns must have been validated. What a column would weigh in our layout is worked out before it
is made: in a few bytes a dictionary can name the same megabyte a thousand times.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyarrow import types

from pydanube.errors import InvalidRequest
from pydanube.model.batch import SCHEMA

COLUMN_BYTES_MAX = 16 * 1024 * 1024
"""What one converted column may weigh."""


class _Rule(Struct, frozen=True):
    """Which types a column may have, in words and in deed, and how they become ours."""

    wanted: str
    accepts: Callable[[pa.DataType], bool]
    convert: Callable[[pa.Array], pa.Array]


def check_type(name: str, kind: pa.DataType) -> None:
    """Refuse a type that column cannot have."""
    rule = _RULES[name]
    if not rule.accepts(_stored(kind)):
        raise InvalidRequest(f"column {name} must be {rule.wanted}, not {kind}; convert it first")


def convert_column(name: str, column: pa.Array) -> pa.Array:
    """Return a column of a checked type as SCHEMA has it; InvalidRequest if a value forbids it."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    try:
        return _RULES[name].convert(column)
    except pa.ArrowException as error:
        raise InvalidRequest(f"column {name}: {error}") from None


def has_our_layout(name: str, kind: pa.DataType) -> bool:
    """Tell whether a column of that type has the very bytes that one of ours has."""
    ours = SCHEMA.field(name).type
    if types.is_map(kind) and types.is_map(ours):
        # Whether its keys are sorted, or its items may be null, shows in no byte.
        return bool(kind.key_type == ours.key_type and kind.item_type == ours.item_type)
    return bool(kind == ours)


def _stored(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _is_bytes(kind: pa.DataType) -> bool:
    """Tell bytes and texts, perhaps from a dictionary.

    Views are left out: Arrow follows even those of nulls, which no validation looks at.
    """
    if types.is_dictionary(kind):
        kind = kind.value_type
    return (
        _is_text(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    )


def _is_bytes_or_null(kind: pa.DataType) -> bool:
    return types.is_null(kind) or _is_bytes(kind)


def _is_integer(kind: pa.DataType) -> bool:
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_integer(kind) or types.is_null(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) or types.is_integer(kind) or types.is_null(kind))


def _is_attributes(kind: pa.DataType) -> bool:
    if types.is_null(kind):
        return True
    return types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _cast_to(target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    def convert(column: pa.Array) -> pa.Array:
        # Arrow would return the very column, and take its time to find out.
        return column if column.type == target else _without_dictionary(column).cast(target)

    return convert


def _without_dictionary(column: pa.Array) -> pa.Array:
    if not types.is_dictionary(column.type):
        return column
    values, indices = column.dictionary, column.indices
    if _is_bytes(values.type):
        weight: int = pc.sum(pc.take(pc.binary_length(values), indices)).as_py() or 0
        if weight > COLUMN_BYTES_MAX:
            raise InvalidRequest(
                f"a column holds {weight} bytes once its dictionary is unpacked; the limit is "
                f"{COLUMN_BYTES_MAX}"
            )
    return pc.take(values, indices)


def _time(column: pa.Array) -> pa.Array:
    kind = column.type
    if types.is_timestamp(kind):
        # Finer units lose what milliseconds cannot hold; coarser ones may not overflow.
        column = column.cast(pa.timestamp("ms", kind.tz), safe=kind.unit not in ("us", "ns"))
        return column.view(pa.int64())
    return column.cast(pa.int64())


_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "publish_time": _Rule("a timestamp or an integer of milliseconds", _is_time, _time),
        "producer_name": _Rule("text", _is_bytes_or_null, _cast_to(pa.utf8())),
        "routing_key": _Rule("text", _is_bytes_or_null, _cast_to(pa.utf8())),
        "attributes": _Rule(
            "a map of text to text", _is_attributes, _cast_to(SCHEMA.field("attributes").type)
        ),
        "schema_id": _Rule("an integer", _is_integer, _cast_to(pa.uint64())),
        "schema_version": _Rule("an integer", _is_integer, _cast_to(pa.uint32())),
        "payload": _Rule("binary or text", _is_bytes, _cast_to(pa.binary())),
    }
)
