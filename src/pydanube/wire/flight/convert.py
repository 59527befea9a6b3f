"""Record batches to and from `model.batch`.

Our own layout passes as the bytes it came in. Any other schema with a `payload` is completed, a
column at a time. Nothing leaves here that has not been validated to its last offset, so whoever
opens a stored batch may trust it.
"""

from collections.abc import Callable, Sequence

import pyarrow as pa
from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.model.attributes import none_for_empty
from pydanube.model.batch import SCHEMA, Batch
from pydanube.wire.flight.columns import check_type, convert_column, has_our_layout
from pydanube.wire.flight.framing import BodyParts, encapsulate, flight_data
from pydanube.wire.flight.ipc import IpcHead, IpcKind, read_head, unpacked_bytes
from pydanube.wire.flight.rows import check_rows

BATCH_BYTES_MAX = 16 * 1024 * 1024 - 64 * 1024
"""What a stored batch may weigh, so that one message of 16 MiB can carry it to any client."""
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""What a message may weigh that brings a batch, whichever way it comes."""
BATCH_ROWS_MAX = 65_536
DICTIONARY_BYTES_MAX = 4 * 1024 * 1024
"""What the dictionaries of one stream may weigh together."""
COLUMNS_MAX = 256

SCHEMA_MESSAGE: bytes = SCHEMA.serialize().to_pybytes()
"""What every stream of batches begins with."""
SCHEMA_DATA = flight_data(SCHEMA_MESSAGE)

_NAMES = tuple(SCHEMA.names)
_ATTRIBUTES, _PAYLOAD = _NAMES.index("attributes"), _NAMES.index("payload")


class _Dictionary(Struct, frozen=True):
    """A dictionary's message, and what it weighs with all that it unpacks to."""

    message: bytes
    weight: int


class Intake:
    """Takes in the Arrow messages of one stream: its schema, then batches of it.

    `producer` and the time stand in for the columns producer_name and publish_time where the
    stream has none, or a null. Columns that no message has are refused, unless `ignore_others`.
    """

    def __init__(
        self, producer: str, now_ms: Callable[[], int], *, ignore_others: bool = False
    ) -> None:
        self._producer = producer
        self._now_ms = now_ms
        self._ignore_others = ignore_others
        self._schema: pa.Schema | None = None
        self._schema_message = b""
        self._ours = False
        self._dictionaries: dict[int, list[_Dictionary]] = {}

    def take(self, header: memoryview, body: BodyParts) -> Batch | None:
        """Return the batch a message brought, if it brought one; it may have no rows.

        InvalidRequest says what is wrong with it; nothing of a refused message is kept.
        """
        head = read_head(bytes(header))
        size = sum(map(len, body))
        if not 0 <= head.body_bytes <= size:
            raise InvalidRequest(
                f"the batch's header promises a body of {head.body_bytes} bytes, not {size}"
            )
        message = encapsulate(header, body)
        if head.body_bytes < size:
            # Where one message ends and the next begins in a stream is not the sender's to say.
            message = message[: head.body_bytes - size]
        if head.kind is IpcKind.SCHEMA:
            self._begin(bytes(message))
            return None
        if self._schema is None:
            raise InvalidRequest("the stream must begin with its Arrow schema")
        weight = head.body_bytes
        if head.compressed:
            weight = unpacked_bytes(head, memoryview(message)[len(message) - weight :])
        _check_size(weight, BATCH_BYTES_MAX)
        if head.kind is IpcKind.DICTIONARY:
            self._keep_dictionary(head, _Dictionary(bytes(message), weight + len(message)))
            return None
        return self._batch(head, message)

    def _begin(self, message: bytes) -> None:
        if self._schema is not None:
            raise InvalidRequest("the stream has a second schema; open another stream for it")
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(message))
            self._check_schema(schema)
        except (pa.ArrowException, OSError) as error:
            raise InvalidRequest(f"the stream's Arrow schema cannot be read: {error}") from None
        except UnicodeDecodeError:  # Arrow itself does not mind.
            raise InvalidRequest(
                "the stream's Arrow schema holds a name that is not UTF-8"
            ) from None
        self._schema, self._schema_message = schema, message
        self._ours = tuple(schema.names) == _NAMES and all(
            has_our_layout(field.name, field.type) for field in schema
        )

    def _check_schema(self, schema: pa.Schema) -> None:
        names = schema.names
        if len(names) > COLUMNS_MAX:
            raise InvalidRequest(f"the schema has {len(names)} columns, more than {COLUMNS_MAX}")
        if not schema.equals(pa.schema(list(schema))):
            raise InvalidRequest("the schema is big-endian; send little-endian batches")
        if "payload" not in names:
            raise InvalidRequest(f"the schema has no column payload, only {_listed(names)}")
        repeated = {name for name in _NAMES if names.count(name) > 1}
        if repeated:
            raise InvalidRequest(f"the schema has column {_listed(sorted(repeated))} twice")
        others = [name for name in names if name not in _NAMES]
        if others and not self._ignore_others:
            raise InvalidRequest(
                f"the schema has column {_listed(others)}, which messages do not have; they have "
                f"{', '.join(_NAMES)}. Leave it out, put it into attributes or payload, or ask for "
                '"other_columns": "ignore"'
            )
        for field in schema:
            if field.name in _NAMES:
                check_type(field.name, field.type)

    def _keep_dictionary(self, head: IpcHead, dictionary: "_Dictionary") -> None:
        kept = self._dictionaries.get(head.dictionary_id, []) if head.is_delta else []
        changed = {**self._dictionaries, head.dictionary_id: [*kept, dictionary]}
        weight = sum(part.weight for parts in changed.values() for part in parts)
        _check_size(weight, DICTIONARY_BYTES_MAX)
        self._dictionaries = changed

    def _batch(self, head: IpcHead, message: bytes | memoryview) -> Batch:
        if not 0 <= head.row_count <= BATCH_ROWS_MAX:
            raise InvalidRequest(
                f"the batch has {head.row_count} rows; a batch has at most {BATCH_ROWS_MAX}"
            )
        rows = self._open(message)
        if rows.num_rows != head.row_count:
            raise InvalidRequest("the batch's header and columns differ in length")
        if not rows.num_rows:
            return Batch(b"", 0)
        if not self._ours:
            rows = self._complete(rows)
        check_rows(rows)
        given = rows.column(_ATTRIBUTES)
        attributes = none_for_empty(given)
        if attributes is not given:
            rows = rows.set_column(_ATTRIBUTES, SCHEMA.field(_ATTRIBUTES), attributes)
        as_sent = self._ours and attributes is given
        columns: pa.RecordBatch | None = rows
        if not as_sent or head.compressed:
            columns = None  # They would be kept beside the message, not within it.
        # Recovery relies on a byte per row at least, which a compressed batch need not have.
        if not as_sent or len(message) < rows.num_rows:
            message = rows.serialize().to_pybytes()
        _check_size(len(message), BATCH_BYTES_MAX)
        return Batch(
            message,
            rows.num_rows,
            columns=columns,
            payload_bytes=_payload_bytes(rows),
            timings=() if attributes.null_count == len(attributes) else None,
        )

    def _open(self, message: bytes | memoryview) -> pa.RecordBatch:
        try:
            if self._dictionaries:
                rows = self._open_with_dictionaries(message)
            else:
                schema = SCHEMA if self._ours else self._schema
                rows = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
            rows.validate(full=True)
        except (pa.ArrowException, OSError, StopIteration) as error:
            raise InvalidRequest(f"the batch is not a valid Arrow record batch: {error}") from None
        return rows

    def _open_with_dictionaries(self, message: bytes | memoryview) -> pa.RecordBatch:
        # Arrow reads dictionaries in a stream only, so each batch becomes the end of a small one.
        dictionaries = (part.message for parts in self._dictionaries.values() for part in parts)
        stream = b"".join((self._schema_message, *dictionaries, message))
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            return reader.read_next_batch()

    def _complete(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field in SCHEMA:
            if field.name in rows.schema.names:
                column = convert_column(field.name, rows.column(field.name))
            else:
                column = pa.nulls(rows.num_rows, field.type)
            if field.name == "producer_name" and column.null_count:
                column = column.fill_null(self._producer)
            elif field.name == "publish_time" and column.null_count:
                column = column.fill_null(self._now_ms())
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def rows_message(batch: Batch, first_row: int, end_row: int) -> bytes | memoryview:
    """Return some rows of a batch as one encapsulated IPC message: its own bytes if it is all."""
    if first_row == 0 and end_row == batch.count:
        return batch.data
    rows = batch.record_batch().slice(first_row, end_row - first_row)
    message: bytes = rows.serialize().to_pybytes()
    return message


def _payload_bytes(rows: pa.RecordBatch) -> int:
    column = rows.column(_PAYLOAD)
    offsets = memoryview(column.buffers()[1]).cast("i")
    size: int = offsets[column.offset + len(column)] - offsets[column.offset]
    return size


def _check_size(size: int, size_max: int) -> None:
    if size > size_max:
        raise InvalidRequest(
            f"the batch has {size} bytes, more than {size_max}; send it in several"
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(name[:64] for name in names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
