"""Arrow streams as a Flight client sends them: cut into header and body."""

from typing import Any

import pyarrow as pa

from pydanube.errors import DanubeError
from pydanube.model.batch import SCHEMA, Batch
from pydanube.wire.flight.convert import Intake

NOW_MS = 1_700_000_000_000


def cut(message: bytes) -> tuple[memoryview, tuple[memoryview]]:
    """Cut an encapsulated message as FlightData does."""
    length = int.from_bytes(message[4:8], "little")
    return memoryview(message)[8 : 8 + length], (memoryview(message)[8 + length :],)


def stream_messages(
    schema: pa.Schema, batches: list[pa.RecordBatch], **options: Any
) -> list[bytes]:
    """Return the encapsulated messages Arrow writes for a stream, without its end."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data, messages, at = sink.getvalue().to_pybytes(), [], 0
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(data))
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return messages
        size = len(message.serialize())
        messages.append(data[at : at + size])
        at += size


def intake(**options: Any) -> Intake:
    return Intake("the-producer", lambda: NOW_MS, **options)


def take_all(messages: list[bytes], **options: Any) -> list[Batch]:
    """Return the batches of a stream."""
    taking = intake(**options)
    taken = [taking.take(*cut(message)) for message in messages]
    return [batch for batch in taken if batch is not None]


def take_table(table: pa.RecordBatch, *, options: dict[str, Any] | None = None) -> Batch:
    """Return the batch one record batch becomes."""
    (batch,) = take_all(stream_messages(table.schema, [table]), **(options or {}))
    return batch


def refusal_of(messages: list[bytes], **options: Any) -> str:
    try:
        take_all(messages, **options)
    except DanubeError as error:
        return str(error)
    raise AssertionError("the stream was taken")


def rows_of(batch: Batch) -> list[dict[str, Any]]:
    """Return a batch's rows by column name."""
    return pa.ipc.read_record_batch(pa.py_buffer(batch.data), SCHEMA).to_pylist()
