"""Dead letters: the table they go to, and the rows they were, read back with their places."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydanube.errors import NotFound
from pydanube.pipelines.definitions import DeadLetter, Source
from pydanube.pipelines.judging import SET_BY_US
from pydanube.pipelines.lakes import FileLake
from pydanube.pipelines.sinks.delta import delta_at
from pydanube.pipelines.sinks.iceberg import iceberg_named
from pydanube.runtime.blocking import environment
from pydanube.spark.options import DEFAULT_URL, URL_VARIABLE, read_options
from pydanube.spark.source.batch_reader import resolve_range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def table_of_letters(target: DeadLetter) -> FileLake | None:
    """Return the table of dead letters; None where they go to a topic."""
    if target.path is not None:
        return delta_at(target.path, {})
    return iceberg_named(target.catalog, target.table) if target.table is not None else None


def letters_of(
    spark: "SparkSession", target: DeadLetter, danube: Mapping[str, str]
) -> "tuple[DataFrame, str]":
    """Return all dead letters that there are now, and words for how far that is."""
    lake = table_of_letters(target)
    if lake is not None:
        rows = lake.rows()
        if rows is None:
            raise NotFound(f"there are no dead letters: no table {lake.name}")
        from pyspark.sql.functions import current_timestamp

        frame = spark.createDataFrame(rows).withColumn("publish_time", current_timestamp())
        return frame, str(rows.num_rows)
    assert target.topic is not None, "it was checked"
    options = {**danube, "topic": target.topic}
    url = environment(URL_VARIABLE) or DEFAULT_URL
    parsed = read_options(options, streaming=False, now_ms=0, default_url=url)
    bounds = resolve_range(parsed, ()).bounds
    ends = json.dumps({topic: end for topic, (_, end) in bounds.items()}, sort_keys=True)
    return spark.read.format("danube").options(**options, endingOffsets=ends).load(), ends


def places_of(letters: "DataFrame", pipeline: str, source: Source) -> "DataFrame":
    """Return the rows of a source that a pipeline rejected, each once, as the source gave them.

    Letters that do not say where their row came from are left out.
    """
    from pyspark.sql.functions import coalesce, col, lit, map_filter

    attribute = col("attributes").getItem
    origin = attribute("x-original-topic")
    wanted = (
        origin.rlike(f"^(?:{source.topics_pattern})$")
        if source.topics_pattern is not None
        else origin.isin(*filter(None, (source.topic, *source.topics)))
    )
    rows = letters.where((attribute("x-pipeline") == lit(pipeline)) & wanted)
    rows = rows.where(attribute("x-original-topic-offset").isNotNull())
    own = map_filter(col("attributes"), lambda key, _: ~key.isin(*SET_BY_US))
    return rows.select(
        origin.alias("topic"),
        coalesce(attribute("x-original-topic-partition"), lit("0")).cast("int").alias("partition"),
        attribute("x-original-topic-offset").cast("bigint").alias("offset"),
        "publish_time",
        lit(None).cast("string").alias("producer_name"),
        "routing_key",
        own.alias("attributes"),
        "schema_id",
        "schema_version",
        "payload",
    ).dropDuplicates(["topic", "partition", "offset"])
