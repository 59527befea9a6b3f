"""Typed values for any frame that has payloads, by a subject of the registry."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.runtime.blocking import environment
from pydanube.spark.frames import option_texts
from pydanube.spark.options import DEFAULT_URL, URL_VARIABLE, Access, access_of
from pydanube.spark.registry import ReaderSchema, subject_schema, writer_schema
from pydanube.spark.source.decoding import PayloadDecoder, fit
from pydanube.spark.source.rows import DECODED_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBERS = {"schema_id": pa.int64(), "schema_version": pa.int32()}


def decode(
    frame: "DataFrame",
    subject: str,
    version: int | None = None,
    *,
    on_error: Literal["null", "fail"] = "null",
    **options: object,
) -> "DataFrame":
    """Return a frame, of a batch or a stream, with the columns value and decode_error added.

    `payload` is decoded by the subject's latest version, or by `version`; this is fixed now. Where
    the frame has schema_id and schema_version, payloads of other versions are resolved by name. A
    payload that cannot be decoded has a null value and says why in decode_error, or fails the job
    with `on_error="fail"`. `options` are `url` and those of security.
    """
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    if kinds.get("payload") != "binary":
        raise InvalidRequest(
            f"to decode a frame it must have a binary column payload; it has {', '.join(kinds)}"
        )
    taken = [name for name in DECODED_COLUMNS if name in kinds]
    if taken:
        raise InvalidRequest(f"the frame has a column {', '.join(taken)} already; rename it first")
    default_url = environment(URL_VARIABLE) or DEFAULT_URL
    access = access_of(option_texts(options), default_url)
    reader = subject_schema(access, subject, version)
    made = StructType.fromDDL(f"value {reader.schema().spark_ddl()}, decode_error string")
    assert isinstance(made, StructType), "a list of columns is a struct"
    step = _Decoding(
        access=access,
        reader=reader,
        strict=on_error == "fail",
        value_type=to_arrow_type(made["value"].dataType, timezone="UTC"),
    )
    return frame.mapInArrow(step, StructType([*frame.schema.fields, *made.fields]))


class _Decoding(Struct, frozen=True, kw_only=True):
    """What tasks do; Spark carries it to them."""

    access: Access
    reader: ReaderSchema
    strict: bool
    value_type: pa.DataType

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = PayloadDecoder(
            self.reader,
            lambda schema_id, version: writer_schema(self.access, schema_id, version),
            strict=self.strict,
        )
        for batch in batches:
            values, errors = decoder.decode(_needed(batch), None)
            yield batch.append_column("value", fit(values, self.value_type)).append_column(
                "decode_error", errors
            )


def _needed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return what the decoder looks at; numbers that the frame does not have are null."""
    given = set(batch.schema.names)
    columns = {
        name: batch.column(name).cast(kind) if name in given else pa.nulls(batch.num_rows, kind)
        for name, kind in _NUMBERS.items()
    }
    return pa.record_batch({"payload": batch.column("payload"), **columns})
