"""Rows of a frame as messages: which columns mean what, and where each row goes. Pure."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.model.attributes import none_for_empty
from pydanube.model.hashing import fnv1a_64
from pydanube.spark.options import WriteOptions
from pydanube.spark.sink.digests import entries_of, values_in_a_row
from pydanube.spark.sink.encoding import Encode, json_payloads

MESSAGE_COLUMNS = {
    "publish_time": ("timestamp",),
    "producer_name": ("string",),
    "routing_key": ("string",),
    "attributes": ("map<string,string>",),
    "schema_id": ("bigint", "int"),
    "schema_version": ("int", "bigint"),
    "payload": ("binary", "string"),
}
"""Columns that become parts of a message, with the types they may have."""
PLACE_COLUMNS = {"topic": ("string",), "partition": ("int",), "offset": ("bigint",)}
"""Columns of a frame that was read from topics. The target gives places of its own."""


class FrameColumns(Struct, frozen=True, kw_only=True):
    """What a writer does with the columns of its frame."""

    message: tuple[str, ...]
    record: tuple[str, ...] = ()
    """The columns that are encoded into the payload; none: there is a payload."""
    topic: bool = False
    """Whether the column `topic` says where rows go."""


def check_frame(types: Sequence[tuple[str, str]], options: WriteOptions) -> FrameColumns:
    """Return what the columns of a frame mean; InvalidRequest names the one that means nothing."""
    named = dict(types)
    if len(named) != len(types):
        raise InvalidRequest("the frame has a column twice; give each column a name of its own")
    own = {options.producer_column, options.sequence_column} - {None}
    for column in sorted(own - named.keys(), key=str):
        raise InvalidRequest(f"the frame has no column {column}, which an option names")
    for name, kinds in (MESSAGE_COLUMNS | PLACE_COLUMNS).items():
        if name in named and named[name] not in kinds:
            raise InvalidRequest(f"column {name} is {named[name]}; it must be {' or '.join(kinds)}")
    if options.topic is None and "topic" not in named:
        raise InvalidRequest(
            "no topic is given: set option topic, such as /default/orders, or add a column topic"
        )
    envelope = MESSAGE_COLUMNS.keys() | PLACE_COLUMNS.keys() | own
    others = [name for name in named if name not in envelope]
    message = tuple(name for name in named if name in MESSAGE_COLUMNS)
    if options.encode == "none":
        _check_payload(named, others)
    elif not others or "payload" in named:
        raise InvalidRequest(
            f"option encode is {options.encode}: the columns that are not of the envelope become "
            f"the payload, {'there are none' if not others else 'and the frame has one already'}"
        )
    return FrameColumns(
        message=message,
        record=tuple(others) if options.encode != "none" else (),
        topic=options.topic is None,
    )


def _check_payload(named: dict[str, str], others: list[str]) -> None:
    if "payload" not in named:
        raise InvalidRequest(
            "the frame has no column payload; name one so, or let option encode=json make one of "
            "all columns"
        )
    if others:
        raise InvalidRequest(
            f"column {', '.join(others)} is none of a message's ({', '.join(MESSAGE_COLUMNS)}); "
            "leave it out, or let option encode make a payload of the columns"
        )


def messages_of(
    rows: pa.RecordBatch, columns: FrameColumns, encode: Encode = json_payloads
) -> pa.RecordBatch:
    """Return the columns of messages, under their own names."""
    found = {name: _small(rows.column(name)) for name in columns.message}
    if columns.record:
        found["payload"] = encode(rows.select(list(columns.record)))
    payload = found["payload"]
    if payload.null_count:
        raise InvalidRequest(
            f"{payload.null_count} rows have no payload; filter them, or give them an empty one"
        )
    if pa.types.is_string(payload.type):
        found["payload"] = payload.cast(pa.binary())
    if "attributes" in found:
        found["attributes"] = none_for_empty(found["attributes"])
    return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))


def _small(column: pa.Array) -> pa.Array:
    """Return texts and bytes with offsets of 32 bits; Spark can be told to give them 64."""
    kind = column.type
    if pa.types.is_large_binary(kind):
        return column.cast(pa.binary())
    if pa.types.is_large_string(kind):
        return column.cast(pa.utf8())
    if pa.types.is_map(kind) and pa.types.is_large_string(kind.key_type):
        return column.cast(pa.map_(pa.utf8(), pa.utf8()))
    return column


def split_by_topic(rows: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Give each target its rows: one target for all, or as the column `topic` says."""
    if topic is not None:
        yield topic, rows
        return
    named = rows.column("topic")
    if named.null_count:
        raise InvalidRequest(f"{named.null_count} rows have no topic; fill the column, or filter")
    found = pc.unique(named).to_pylist()
    for name in found:
        yield name, rows if len(found) == 1 else rows.filter(pc.equal(named, name))


def partitions_for(keys: pa.Array | None, numbers: pa.Array, partitions: int) -> pa.Array:
    """Return the partition of each row: by its key, else by its number in the task.

    It depends on nothing else, so that a batch that is written again goes the same way.
    """
    turns = pc.subtract(numbers, pc.multiply(pc.divide(numbers, partitions), partitions))
    if keys is None or keys.null_count == len(keys):
        return turns
    encoded = keys.dictionary_encode()
    places = [fnv1a_64(key) % partitions for key in encoded.dictionary.to_pylist()]
    by_key = pc.take(pa.array(places, pa.int64()), encoded.indices)
    return pc.coalesce(by_key, turns)


LENIENCE = 1.25
"""How much heavier than asked a chunk may be, rather than be cut in two."""
_ROW_WEIGHT = 64


def batch_weight(rows: pa.RecordBatch) -> int:
    """Return about how many bytes all rows weigh."""
    weight: int = _ROW_WEIGHT * rows.num_rows
    for column in rows.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            weight += len(values_in_a_row(column))
        elif pa.types.is_map(column.type):
            weight += sum(len(values_in_a_row(part)) for part in entries_of(column))
    return weight


def row_weights(rows: pa.RecordBatch) -> pa.Array:
    """Return about how many bytes each row weighs, from its values alone."""
    weights = pa.repeat(pa.scalar(_ROW_WEIGHT, pa.int64()), rows.num_rows)
    for column in rows.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            lengths = pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
            weights = pc.add(weights, lengths)
        elif pa.types.is_map(column.type) and column.null_count < len(column):
            weights = pc.add(weights, _map_weights(column))
    return weights


def _map_weights(column: pa.MapArray) -> pa.Array:
    lengths = pc.add(
        pc.binary_length(column.keys), pc.fill_null(pc.binary_length(column.items), 0)
    ).cast(pa.int64())
    sums = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    offsets = column.offsets
    return pc.subtract(sums.take(offsets[1:]), sums.take(offsets[:-1]))


class Chunker:
    """Cuts a sequence of batches into chunks to publish.

    What is half a chunk or more is cut into even pieces that share its memory; smaller batches
    gather, and are copied once. Where it cuts depends on the batches alone: a repeat, which has
    the same ones, names the same ranges.
    """

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_weight = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows; yield the chunks that are complete now."""
        weight = batch_weight(rows)
        is_small = 2 * rows.num_rows < self._rows_max and 2 * weight < self._bytes_max
        if not is_small or not self._has_room(rows.num_rows, weight):
            yield from self._gathered()
        if not is_small:
            yield from self._pieces(rows, weight)
            return
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_weight += weight

    def rest(self) -> pa.RecordBatch | None:
        """Return the last, incomplete chunk."""
        return next(self._gathered(), None)

    def _has_room(self, rows: int, weight: int) -> bool:
        return (
            self._waiting_rows + rows <= self._rows_max
            and self._waiting_weight + weight <= self._bytes_max
        )

    def _gathered(self) -> Iterator[pa.RecordBatch]:
        parts = self._waiting
        self._waiting, self._waiting_rows, self._waiting_weight = [], 0, 0
        if parts:
            yield parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _pieces(self, rows: pa.RecordBatch, weight: int) -> Iterator[pa.RecordBatch]:
        """Cut into pieces of about the same weight; one row may be heavier than a chunk is."""
        most = int(self._bytes_max * LENIENCE)
        count = max(-(-rows.num_rows // self._rows_max), -(-weight // most))
        if count == 1:
            yield rows
            return
        weights = row_weights(rows)
        rows_max = -(-rows.num_rows // count)
        weight_max = min(weight // count + pc.max(weights).as_py(), most)
        sums = pc.cumulative_sum(weights)
        first, before = 0, 0
        while first < rows.num_rows:
            over = pc.index(pc.greater(sums.slice(first), before + weight_max), True).as_py()
            fitting = rows.num_rows - first if over < 0 else max(over, 1)
            taken = min(fitting, rows_max)
            yield rows.slice(first, taken)
            first += taken
            before = sums[first - 1].as_py()


def sort_rows(rows: pa.Table) -> pa.Table:
    """Sort by all columns, so that the same set of rows always has the same order."""
    keys = []
    for number, field in enumerate(rows.schema):
        if pa.types.is_nested(field.type):
            rendered = [repr(sorted(value or ())) for value in rows.column(number).to_pylist()]
            rows = rows.append_column(f"danube_sort_{number}", pa.array(rendered, pa.utf8()))
            keys.append((f"danube_sort_{number}", "ascending"))
        else:
            keys.append((field.name, "ascending"))
    ordered = rows.sort_by(keys)
    return ordered.select([name for name in ordered.column_names if "danube_sort_" not in name])
