"""A topic as one frame: its table at one snapshot, and what the topic has beyond it.

The table says how far it goes, in the same snapshot, so every message is in the frame once. Those
that do not fit the table, its dead letters to be, are not in it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from pydanube.runtime.blocking import environment
from pydanube.spark.options import DEFAULT_URL, URL_VARIABLE
from pydanube.spark.source.planning import Limits
from pydanube.tables.book import TableBook
from pydanube.tables.catalog_settings import CatalogSetting
from pydanube.tables.catalogs import open_tables
from pydanube.tables.columns import Columns
from pydanube.tables.lake import LakeSnapshot
from pydanube.tables.messages import RAW, sort_messages
from pydanube.tables.opening import surroundings_of
from pydanube.tables.state import plan_spans
from pydanube.tables.topic_schemas import RegistryConnection, TopicSchemas
from pydanube.tables.topic_source import BrokerTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELETED = "__danube_deleted"


def table(
    spark: "SparkSession",
    topic: str,
    *,
    url: str | None = None,
    catalogs: str | Mapping[str, CatalogSetting] | None = None,
) -> "DataFrame":
    """Return a topic that is a table, up to now: every message once.

    Of a table with a key, the last row of each. The table's part is fixed by this call; the tail
    is read when the frame is.
    """
    found_url = url or environment(URL_VARIABLE) or DEFAULT_URL
    with surroundings_of(found_url, catalogs) as given:
        setting = TableBook(given.access).get(topic)
        main = open_tables(topic, setting, given.catalogs, given.clock).main
        schemas = TopicSchemas(given.registry, topic)
        snapshot = main.load()
        columns = Columns(schemas.columns() if snapshot is None else snapshot.columns)
        for each in schemas.columns():
            columns.admit(each.name, each.type)
        positions = {} if snapshot is None else snapshot.positions
        states = BrokerTopic(given.access, topic).states()
        plan_spans(positions, states, setting.starts, Limits())  # Refuses what cannot be joined.
    starts = {
        name: positions[name].next
        if name in positions
        else min(max(state.earliest, setting.starts.get(name, 0)), state.frontier)
        for name, state in states.items()
    }
    tail = _tail(spark, found_url, topic, starts, columns.schema, deletes=bool(setting.key))
    stored = tail.limit(0) if snapshot is None else _stored(spark, snapshot, columns.schema)
    if setting.key:
        return _last_of_each(stored, tail, setting.key)
    return stored.unionByName(tail)


def _stored(spark: "SparkSession", snapshot: LakeSnapshot, schema: pa.Schema) -> "DataFrame":
    """Return the table: by Spark's own Parquet scan where the files are all there is to it."""
    from pyspark.sql.functions import lit
    from pyspark.sql.pandas.types import from_arrow_schema

    wanted = from_arrow_schema(schema)
    files = snapshot.plain_files()
    if files and all("://" not in each or each.startswith("file:") for each in files):
        paths = [each if "://" in each else f"file://{each}" for each in files]
        return spark.read.schema(wanted).parquet(*paths)
    rows = snapshot.scan(snapshot.columns.names, {})
    frame = spark.createDataFrame(rows)
    for each in wanted.fields:
        if each.name not in rows.column_names:
            frame = frame.withColumn(each.name, lit(None).cast(each.dataType))
    return frame.select(*(each.name for each in wanted.fields))


def _tail(
    spark: "SparkSession",
    url: str,
    topic: str,
    starts: Mapping[str, int],
    schema: pa.Schema,
    *,
    deletes: bool,
) -> "DataFrame":
    from pyspark.sql.pandas.types import from_arrow_schema

    options = {"url": url, "topic": topic, "startingOffsets": json.dumps(starts)}
    raw = spark.read.format("danube").options(**options).load()
    decode = TailDecoder(url, topic, schema, deletes=deletes)
    return raw.mapInArrow(decode, from_arrow_schema(decode.schema))


def _last_of_each(stored: "DataFrame", tail: "DataFrame", key: Sequence[str]) -> "DataFrame":
    from pyspark.sql import Window
    from pyspark.sql.functions import col, row_number

    if DELETED not in tail.columns:
        return stored
    newest = Window.partitionBy(*key).orderBy(col("offset").desc())
    last = tail.withColumn("__rank", row_number().over(newest)).where("__rank = 1").drop("__rank")
    kept = stored.drop(DELETED).join(last.select(*key), list(key), "left_anti")
    return kept.unionByName(last.where(~col(DELETED)).drop(DELETED))


class TailDecoder:
    """Decodes messages in Spark's tasks, into the columns of a table."""

    def __init__(self, url: str, topic: str, schema: pa.Schema, *, deletes: bool) -> None:
        self._url = url
        self._topic = topic
        self._columns = schema
        self._deletes = deletes
        self.schema = schema.append(pa.field(DELETED, pa.bool_())) if deletes else schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of batches of messages."""
        with RegistryConnection(self._url) as registry:
            schemas = TopicSchemas(registry, self._topic)
            schemas.refresh()
            for batch in batches:
                yield from self._decoded(batch, schemas)

    def _decoded(self, batch: pa.RecordBatch, schemas: TopicSchemas) -> Iterator[pa.RecordBatch]:
        raw = pa.Table.from_batches([batch]).select(RAW.names).cast(RAW)
        found = sort_messages(raw, Columns(self._columns), schemas, empty_deletes=self._deletes)
        rows = found.rows.select(self._columns.names)
        if self._deletes:
            gone = Columns(self._columns).arranged(
                {
                    name: found.tombstones.column(name).combine_chunks()
                    for name in found.tombstones.column_names
                },
                len(found.tombstones),
            )
            rows = pa.concat_tables([_marked(rows, False), _marked(gone, True)])
        yield from rows.cast(self.schema).combine_chunks().to_batches()


def _marked(rows: pa.Table, deleted: bool) -> pa.Table:
    return rows.append_column(DELETED, pa.repeat(pa.scalar(deleted), len(rows)))
