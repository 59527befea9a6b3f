"""Columns of a frame as payloads: one record per row. Pure."""

import json
from collections.abc import Callable
from io import BytesIO

import msgspec
import pyarrow as pa

from pydanube.errors import InvalidRequest
from pydanube.schemas.format import Schema

Encode = Callable[[pa.RecordBatch], pa.Array]


def json_payloads(rows: pa.RecordBatch) -> pa.Array:
    """Return every row as a JSON object."""
    encoder = msgspec.json.Encoder()
    return pa.array([encoder.encode(row) for row in rows.to_pylist()], pa.binary())


def avro_payloads(definition: bytes) -> Encode:
    """Return what writes every row as a bare Avro datum of a schema."""
    import fastavro

    schema = fastavro.parse_schema(json.loads(definition))

    def encode(rows: pa.RecordBatch) -> pa.Array:
        payloads = []
        for row in rows.to_pylist():
            datum = BytesIO()
            try:
                fastavro.schemaless_writer(datum, schema, row)
            except (TypeError, ValueError, KeyError, fastavro.schema.SchemaParseException) as error:
                raise InvalidRequest(
                    f"a row is not what the Avro schema describes: {error}; give the frame the "
                    "schema's fields, with its types"
                ) from None
            payloads.append(datum.getvalue())
        return pa.array(payloads, pa.binary())

    return encode


def protobuf_payloads(schema: Schema) -> Encode:
    """Return what writes every row as a message of a schema."""
    from pydanube.schemas.protobuf.format import ProtobufSchema

    assert isinstance(schema, ProtobufSchema), "its format was checked"
    encoder = schema.row_encoder()

    def encode(rows: pa.RecordBatch) -> pa.Array:
        encoder.check_columns(tuple(rows.schema.names))
        return pa.array([encoder.encode(row) for row in rows.to_pylist()], pa.binary())

    return encode
