"""What every row of a batch must keep, so that each consumer of any API can be sent it.

The limits are those of the per-message API. A whole batch is judged at once, by its columns.
"""

from bisect import bisect_right

import pyarrow as pa
import pyarrow.compute as pc

from pydanube.errors import InvalidRequest
from pydanube.model.batch import SCHEMA
from pydanube.wire.danube.convert import (
    ATTRIBUTES_MAX,
    BYTES_BESIDE_PAYLOAD_MAX,
    ROUTING_KEY_CHARACTERS_MAX,
)

# By number, since Arrow looks a name up each time it is asked for a column.
_TIME, _NAME, _KEY, _ATTRS = map(
    SCHEMA.get_field_index, ("publish_time", "producer_name", "routing_key", "attributes")
)
_REQUIRED = tuple(number for number, field in enumerate(SCHEMA) if not field.nullable)
_TIME_BYTES = 8
_FIXED_BYTES, _ATTRIBUTE_BYTES = 128, 16
"""What the per-message API adds to a row, and to each of its attributes."""
_FEW_BYTES = 1024
"""Below, to ask Arrow for the longest text takes more time than it can save."""


def check_rows(rows: pa.RecordBatch) -> None:
    """Refuse rows of SCHEMA that could not be delivered; they must have been validated."""
    for number in _REQUIRED:
        column = rows.column(number)
        if column.null_count:
            row = _first_row(pc.is_null(column))
            raise InvalidRequest(
                f"column {SCHEMA.field(number).name} holds a null in row {row}; every message "
                "needs a value there"
            )
    _check_times(rows.column(_TIME))
    names, keys, attributes = rows.column(_NAME), rows.column(_KEY), rows.column(_ATTRS)
    heaviest = _FIXED_BYTES + _longest(names) + _check_keys(keys) + _check_attributes(attributes)
    if heaviest > BYTES_BESIDE_PAYLOAD_MAX:
        _check_weight(names, keys, attributes)


def _check_times(times: pa.Array) -> None:
    start = times.offset * _TIME_BYTES
    held = memoryview(times.buffers()[1])[start : start + len(times) * _TIME_BYTES]
    # The sign is the highest bit of the last byte; to ask Arrow would take ten times as long.
    if not held.tobytes()[_TIME_BYTES - 1 :: _TIME_BYTES].isascii():
        earliest: int = pc.min(times).as_py()
        row = _first_row(pc.less(times, 0))
        raise InvalidRequest(
            f"publish_time {earliest} in row {row} is not in milliseconds since 1970"
        )


def _check_keys(keys: pa.Array) -> int:
    """Refuse a key with too many characters; return the bytes of the longest, or more."""
    # No character takes less than a byte, and to count bytes none has to be looked at.
    most_bytes = _longest(keys)
    if most_bytes <= ROUTING_KEY_CHARACTERS_MAX:
        return most_bytes
    lengths = pc.utf8_length(keys)
    longest = _largest(lengths)
    if longest > ROUTING_KEY_CHARACTERS_MAX:
        raise InvalidRequest(
            f"the routing_key of row {_first_row(pc.equal(lengths, longest))} has {longest} "
            f"characters; at most {ROUTING_KEY_CHARACTERS_MAX} are allowed"
        )
    return most_bytes


def _check_attributes(attributes: pa.Array) -> int:
    """Refuse attributes that no message can have; return what a row's would weigh at most.

    That is if the row with the most of them had the longest of all.
    """
    if attributes.null_count == len(attributes):
        return 0
    # Keys that are null have not passed validation.
    if attributes.items.null_count:
        row = _row_of_entry(attributes, pc.is_null(attributes.items))
        raise InvalidRequest(f"the attributes of row {row} hold nulls; leave such attributes out")
    counts = _differences(attributes.offsets)
    most = _largest(counts)
    if most > ATTRIBUTES_MAX:
        raise InvalidRequest(
            f"the message in row {_first_row(pc.equal(counts, most))} has {most} attributes; "
            f"at most {ATTRIBUTES_MAX} are allowed"
        )
    return most * (_longest(attributes.keys) + _longest(attributes.items) + _ATTRIBUTE_BYTES)


def _check_weight(names: pa.Array, keys: pa.Array, attributes: pa.Array) -> None:
    """Refuse a row that is too heavy beside its payload."""
    weights = pc.add(pc.binary_length(names), pc.fill_null(pc.binary_length(keys), 0))
    weights = pc.add(pc.cast(weights, pa.int64()), _FIXED_BYTES)
    if attributes.null_count < len(attributes):
        weights = pc.add(weights, _attribute_weights(attributes))
    heaviest = _largest(weights)
    if heaviest > BYTES_BESIDE_PAYLOAD_MAX:
        raise InvalidRequest(
            f"the message in row {_first_row(pc.equal(weights, heaviest))} has about {heaviest} "
            f"bytes beside its payload; at most {BYTES_BESIDE_PAYLOAD_MAX} are allowed"
        )


def _attribute_weights(attributes: pa.Array) -> pa.Array:
    """Return the bytes of each row's attributes: where its entries begin, and the next row's."""
    bounds = attributes.offsets
    weights = pc.multiply(_differences(bounds), _ATTRIBUTE_BYTES)
    for child in (attributes.keys, attributes.items):
        starts = pa.Array.from_buffers(
            pa.int32(), len(child) + 1, [None, child.buffers()[1]], offset=child.offset
        )
        weights = pc.add(weights, _differences(pc.take(starts, bounds)))
    return weights


def _first_row(found: pa.BooleanArray) -> int:
    row: int = pc.index(found, True).as_py()
    return row


def _row_of_entry(attributes: pa.MapArray, found: pa.BooleanArray) -> int:
    """Return the row whose entries hold the first one found."""
    starts: list[int] = attributes.offsets.to_pylist()
    # Entries before the first row's belong to none.
    return max(bisect_right(starts, _first_row(found)) - 1, 0)


def _differences(offsets: pa.Array) -> pa.Array:
    """Return how far apart offsets are, which validation has found to grow from 0 on."""
    return pc.subtract(offsets[1:], offsets[:-1])


def _longest(column: pa.Array) -> int:
    """Return the bytes of a column's longest text, or more where all of them have few."""
    data = column.buffers()[2]
    total: int = data.size if data is not None else 0
    return total if total <= _FEW_BYTES else _largest(pc.binary_length(column))


def _largest(numbers: pa.Array) -> int:
    found: int | None = pc.max(numbers).as_py()
    return found or 0  # None: there are none, or nulls alone.
