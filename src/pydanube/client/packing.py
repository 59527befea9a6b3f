"""Rows as one Arrow message, compressed on request. Pure."""

import pyarrow as pa

from pydanube.client.options import Compression
from pydanube.model.batch import SCHEMA
from pydanube.wire.flight.convert import SCHEMA_MESSAGE

COMPRESSED_BYTES_MIN = 512
"""Below, compressing costs more than it saves."""

_END_OF_STREAM_BYTES = 8


def pack(rows: pa.RecordBatch, compression: Compression) -> memoryview:
    """Return rows of SCHEMA as one encapsulated message, without the schema.

    They stay plain where compressing gains nothing.
    """
    if compression != "none" and rows.nbytes >= COMPRESSED_BYTES_MIN:
        packed = _compressed(rows, compression)
        # The journal wants a byte per row at least.
        if rows.num_rows <= len(packed) < rows.nbytes:
            return packed
    return memoryview(rows.serialize())


def _compressed(rows: pa.RecordBatch, compression: Compression) -> memoryview:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(rows)
    return memoryview(sink.getvalue())[len(SCHEMA_MESSAGE) : -_END_OF_STREAM_BYTES]
