"""What every row of a batch must keep, so that each consumer of any API can be sent it.

The limits are those of the per-message API. A whole batch is judged at once, by its columns.
"""

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
        if rows.column(name).null_count:
            raise InvalidRequest(f"column {name} holds nulls; every message needs it")
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
        raise InvalidRequest(f"publish_time {earliest} is not in milliseconds since 1970")


def _check_keys(keys: pa.Array) -> None:
    if _total_bytes(keys) <= ROUTING_KEY_CHARACTERS_MAX:
        return
    longest: int = pc.max(pc.utf8_length(keys)).as_py()
    if longest > ROUTING_KEY_CHARACTERS_MAX:
        raise InvalidRequest(
            f"a routing key has {longest} characters; at most {ROUTING_KEY_CHARACTERS_MAX} "
            "are allowed"
        )


def _check_attributes(attributes: pa.Array) -> None:
    if attributes.items.null_count or attributes.keys.null_count:
        raise InvalidRequest("attributes hold nulls; leave such attributes out")
    if len(attributes.keys) <= ATTRIBUTES_MAX:
        return
    most: int = pc.max(_differences(attributes.offsets)).as_py()
    if most > ATTRIBUTES_MAX:
        raise InvalidRequest(
            f"a message has {most} attributes; at most {ATTRIBUTES_MAX} are allowed"
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
            f"a message has about {heaviest} bytes beside its payload; at most "
            f"{BYTES_BESIDE_PAYLOAD_MAX} are allowed"
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


def _differences(numbers: pa.Array) -> pa.Array:
    return pc.subtract(pc.cast(numbers[1:], pa.int64()), pc.cast(numbers[:-1], pa.int64()))


def _total_bytes(column: pa.Array) -> int:
    """Return at least the bytes of a column of text; cheap, since no row is looked at."""
    data = column.buffers()[2]
    return data.size if data is not None else 0
