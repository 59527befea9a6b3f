"""What `format("danube")` is made of: options and schema checked, then a reader or a writer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pydanube.errors import InvalidRequest
from pydanube.runtime.blocking import environment
from pydanube.runtime.clock import SystemClock
from pydanube.spark.brokers import found_brokers
from pydanube.spark.options import DEFAULT_URL, URL_VARIABLE, ReadOptions, read_options
from pydanube.spark.registry import ReaderSchema, reader_schema
from pydanube.spark.source.rows import COLUMNS, check_columns
from pydanube.spark.source.topics import Topics
from pydanube.spark.workers import keep_what_is_loaded

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter


def schema_of(options: Mapping[str, str]) -> str:
    """Return the columns of a read as Spark writes them."""
    # Whether a stream or a batch is asked for is not known yet; both know the same columns.
    given = _read_options(options, streaming=False)
    kinds = dict(COLUMNS)
    reader = _reader_schema(given)
    if reader is not None:
        kinds |= {"value": reader.schema().spark_ddl(), "decode_error": "string"}
    names = given.columns or tuple(kinds)
    check_columns(names, "option columns", decoded=reader is not None)
    return ", ".join(f"{name} {kinds[name]}" for name in names)


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return what reads a range of topics."""
    from pydanube.spark.source.batch_reader import BatchReader, FilteringBatchReader

    given = _read_options(options, streaming=False)
    kind = FilteringBatchReader if given.pushdown else BatchReader
    return kind(given, arrow_schema(schema, given), _reader_schema(given))


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return what follows topics."""
    from pydanube.spark.source.stream_reader import StreamReader

    given = _read_options(options, streaming=True)
    return StreamReader(given, arrow_schema(schema, given), _reader_schema(given))


def _reader_schema(options: ReadOptions) -> ReaderSchema | None:
    if options.decode == "raw":
        return None
    topics = Topics(found_brokers(options.access), options.selection)
    topics.discover()
    return reader_schema(options.access, topics.bases, options.schema_version)


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> "DataSourceWriter":
    """Return what appends a frame to topics."""
    from pydanube.spark.sink.writers import BatchWriter

    writer = BatchWriter.of(options, schema, overwrite=overwrite, default_url=_default_url())
    found_brokers(writer.access)  # Tasks would try for minutes, again and again.
    keep_what_is_loaded()
    return writer


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> "DataSourceStreamWriter":
    """Return what appends the batches of a stream to topics."""
    from pydanube.spark.sink.writers import StreamWriter

    writer = StreamWriter.of(options, schema, overwrite=overwrite, default_url=_default_url())
    keep_what_is_loaded()
    return writer


def arrow_schema(schema: StructType, options: ReadOptions) -> pa.Schema:
    """Return Spark's schema as the batches must have it; refuse columns that no message has."""
    check_columns(schema.fieldNames(), "the schema", decoded=options.decode == "schema")
    for field in schema.fields:
        kind = field.dataType.simpleString()
        expected = COLUMNS.get(field.name, kind)
        if kind != expected:
            raise InvalidRequest(
                f"the schema says {field.name} {kind}; it is {field.name} {expected}"
            )
    return to_arrow_schema(schema, timezone="UTC")


def _read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    return read_options(
        options, streaming=streaming, now_ms=SystemClock().now_ms(), default_url=_default_url()
    )


def _default_url() -> str:
    return environment(URL_VARIABLE) or DEFAULT_URL
