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

_REQUIRED = tuple(field.name for field in SCHEMA if not field.nullable)
_FIXED_BYTES, _ATTRIBUTE_BYTES = 128, 16
"""What the per-message API adds to a row, and to each of its attributes."""


def check_rows(rows: pa.RecordBatch) -> None:
    """Refuse rows of SCHEMA that could not be delivered; they must have been validated."""
    for name in _REQUIRED:
        column = rows.column(name)
        if column.null_count:
            row = _first_row(pc.is_null(column))
            raise InvalidRequest(
                f"column {name} holds a null in row {row}; every message needs a value there"
            )
    _check_times(rows.column("publish_time"))
    keys, attributes = rows.column("routing_key"), rows.column("attributes")
    if keys.null_count < len(keys):
        _check_keys(keys)
    if attributes.null_count < len(attributes):
        _check_attributes(attributes)
    _check_weight(rows)


def _check_times(times: pa.Array) -> None:
    earliest: int = pc.min(times).as_py()
    if earliest < 0:
        row = _first_row(pc.less(times, 0))
        raise InvalidRequest(
            f"publish_time {earliest} in row {row} is not in milliseconds since 1970"
        )


def _check_keys(keys: pa.Array) -> None:
    if _total_bytes(keys) <= ROUTING_KEY_CHARACTERS_MAX:
        return
    lengths = pc.utf8_length(keys)
    longest: int = pc.max(lengths).as_py()
    if longest > ROUTING_KEY_CHARACTERS_MAX:
        raise InvalidRequest(
            f"the routing_key of row {_first_row(pc.equal(lengths, longest))} has {longest} "
            f"characters; at most {ROUTING_KEY_CHARACTERS_MAX} are allowed"
        )


def _check_attributes(attributes: pa.Array) -> None:
    # Keys that are null have not passed validation.
    if attributes.items.null_count:
        row = _row_of_entry(attributes, pc.is_null(attributes.items))
        raise InvalidRequest(f"the attributes of row {row} hold nulls; leave such attributes out")
    if len(attributes.keys) <= ATTRIBUTES_MAX:
        return
    counts = _differences(attributes.offsets)
    most: int = pc.max(counts).as_py()
    if most > ATTRIBUTES_MAX:
        raise InvalidRequest(
            f"the message in row {_first_row(pc.equal(counts, most))} has {most} attributes; "
            f"at most {ATTRIBUTES_MAX} are allowed"
        )


def _check_weight(rows: pa.RecordBatch) -> None:
    """Bound what a row weighs beside its payload."""
    names, keys = rows.column("producer_name"), rows.column("routing_key")
    attributes = rows.column("attributes")
    entries = len(attributes.keys)
    total = _total_bytes(names) + _total_bytes(keys) + entries * _ATTRIBUTE_BYTES
    total += _total_bytes(attributes.keys) + _total_bytes(attributes.items) + _FIXED_BYTES
    if total <= BYTES_BESIDE_PAYLOAD_MAX:
        return
    weights = pc.add(pc.binary_length(names), pc.fill_null(pc.binary_length(keys), 0))
    weights = pc.add(pc.cast(weights, pa.int64()), _FIXED_BYTES)
    if entries:
        weights = pc.add(weights, _attribute_weights(attributes))
    heaviest: int = pc.max(weights).as_py()
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


def _differences(numbers: pa.Array) -> pa.Array:
    return pc.subtract(pc.cast(numbers[1:], pa.int64()), pc.cast(numbers[:-1], pa.int64()))


def _total_bytes(column: pa.Array) -> int:
    """Return at least the bytes of a column of text; cheap, since no row is looked at."""
    data = column.buffers()[2]
    return data.size if data is not None else 0
