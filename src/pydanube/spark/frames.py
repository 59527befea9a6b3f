"""Shorthands over the data source, and history as a frame that Spark reads natively."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from pydanube.runtime.blocking import environment
from pydanube.runtime.clock import SystemClock
from pydanube.spark.options import DEFAULT_URL, URL_VARIABLE, ReadOptions, read_options
from pydanube.spark.source.batch_reader import ReadRange, resolve_range
from pydanube.spark.source.hints import choose_store
from pydanube.spark.source.rows import COLUMNS, Place, check_columns
from pydanube.spark.source.segment_files import directory_of
from pydanube.storage.config import Durable
from pydanube.wire.flight.blocking import Plan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_CLASSES = "org.apache.spark.util.Utils"
_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"

Boundary = int | str | datetime | Mapping[str, int] | None
"""An offset of a plain topic, `earliest` or `latest`, a time, or offsets by partition."""


def read(spark: "SparkSession", topic: str, **options: object) -> "DataFrame":
    """Return a topic, or a range of it, as a frame."""
    return spark.read.format("danube").options(**option_texts({"topic": topic, **options})).load()


def read_stream(spark: "SparkSession", topic: str, **options: object) -> "DataFrame":
    """Follow a topic."""
    return (
        spark.readStream.format("danube")
        .options(**option_texts({"topic": topic, **options}))
        .load()
    )


def write_stream(
    frame: "DataFrame", topic: str, checkpoint: str, **options: object
) -> "DataStreamWriter":
    """Return a stream into a topic, to be started."""
    writer = frame.writeStream.format("danube").option("checkpointLocation", checkpoint)
    return writer.options(**option_texts({"topic": topic, **options}))


def history(
    spark: "SparkSession",
    topic: str,
    start: Boundary = None,
    end: Boundary = None,
    columns: Sequence[str] | None = None,
    **options: object,
) -> "DataFrame":
    """Return a topic as it is now: the fast way to read much.

    One vector of offsets is fixed for all partitions. What is sealed in segments is read by Spark's
    own Parquet scan, so that columns, filters and limits reach the files; the rest comes through
    the data source. Where Spark cannot open the segments, all of it does.
    """
    given: dict[str, object] = {
        "topic": topic,
        **options,
        **boundary_options("starting", start),
        **boundary_options("ending", end),
    }
    names = check_columns(tuple(columns or COLUMNS), "columns")
    parsed = read_options(
        option_texts(given),
        streaming=False,
        now_ms=SystemClock().now_ms(),
        default_url=environment(URL_VARIABLE) or DEFAULT_URL,
    )
    found = resolve_range(parsed, ())
    sealed = _sealed(spark, parsed, found)
    if sealed is None:
        return _tail(spark, option_texts(given), found, sealed, names)
    native = _native(spark, sealed, found, names)
    if native is None:
        return _tail(spark, option_texts(given), found, None, names)
    if sealed.reached == {name: bounds[1] for name, bounds in found.bounds.items()}:
        return native
    return native.unionByName(_tail(spark, option_texts(given), found, sealed, names))


class _Sealed(Struct, frozen=True, kw_only=True):
    """The part of a range that segments hold without a gap from its start on."""

    uris: list[str]
    reached: dict[str, int]
    ragged: bool
    """Whether the files hold rows outside the range, too."""


def _sealed(spark: "SparkSession", options: ReadOptions, found: ReadRange) -> _Sealed | None:
    wanted = {name: bounds for name, bounds in found.bounds.items() if bounds[0] < bounds[1]}
    if options.segment_access == "broker" or not wanted:
        return None
    plans = found.topics.segments_between(wanted)
    store = choose_store(structs.replace(options, segment_access="auto"), plans)
    root = None if store is None else _native_root(spark, store)
    if root is None:
        return None
    sealed = sealed_prefix(plans, found.bounds, root)
    return sealed if sealed.uris else None


def sealed_prefix(
    plans: Sequence[Plan], bounds: Mapping[str, tuple[int, int]], root: str
) -> _Sealed:
    """Return the segments that hold a range from its start on, and how far they go."""
    reached = {name: start for name, (start, _) in bounds.items()}
    keys: dict[str, None] = {}
    for plan in plans:
        for piece in plan.pieces:
            if piece.segment is not None and reached.get(piece.topic) == piece.from_:
                keys[piece.segment] = None
                reached[piece.topic] = piece.to
    inside = sum(reached[name] - start for name, (start, _) in bounds.items())
    held = sum(_rows_of(key) for key in keys)
    return _Sealed(uris=[f"{root}/{key}" for key in keys], reached=reached, ragged=held != inside)


def _rows_of(key: str) -> int:
    base, end = key.rpartition("/")[2].split("-")[:2]
    return int(end) - int(base)


def _native_root(spark: "SparkSession", store: Durable) -> str | None:
    """Return the store as Spark names it; None if this Spark cannot open it."""
    directory = directory_of(store)
    if directory is not None:
        return f"file://{directory}"
    root = store.root or ""
    if not root.startswith("s3://") or not _has_s3a(spark):
        return None
    return "s3a://" + root.removeprefix("s3://").rstrip("/")


def _has_s3a(spark: "SparkSession") -> bool:
    # Asked in SQL, for a session of Spark Connect has no Java at hand.
    asked = spark.sql(f"SELECT try_reflect('{_CLASSES}', 'classIsLoadable', '{_S3A}') AS found")
    return bool(asked.collect()[0]["found"] == "true")


def _native(
    spark: "SparkSession", sealed: _Sealed, found: ReadRange, names: Sequence[str]
) -> "DataFrame | None":
    """Return the segments as Spark reads them; None if Spark does not find them where we do."""
    from pyspark.errors import AnalysisException

    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    try:
        frame = spark.read.schema(schema).parquet(*sealed.uris)
        _ = frame.schema  # Spark Connect looks at the files no sooner.
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    if sealed.ragged:
        frame = frame.where(_within(sealed, found))
    return frame.select(*names)


def _within(sealed: _Sealed, found: ReadRange) -> "Column":
    from pyspark.sql.functions import col

    condition: Column | None = None
    for name, (start, _) in found.bounds.items():
        part = (col("offset") >= start) & (col("offset") < sealed.reached[name])
        if len(found.bounds) > 1:
            part = part & (col("partition") == Place.of(name).partition)
        condition = part if condition is None else condition | part
    assert condition is not None, "a range has topics"
    return condition


def _tail(
    spark: "SparkSession",
    options: Mapping[str, str],
    found: ReadRange,
    sealed: _Sealed | None,
    names: Sequence[str],
) -> "DataFrame":
    starts = {name: bounds[0] for name, bounds in found.bounds.items()}
    fixed = {
        **{name: text for name, text in options.items() if "Timestamp" not in name},
        "startingOffsets": json.dumps(starts if sealed is None else sealed.reached),
        "endingOffsets": json.dumps({name: each[1] for name, each in found.bounds.items()}),
        "columns": ",".join(names),
    }
    return spark.read.format("danube").options(**fixed).load()


def boundary_options(side: str, value: Boundary) -> dict[str, object]:
    """Return the option that begins or ends a read at a boundary."""
    if value is None:
        return {}
    if isinstance(value, datetime):
        return {f"{side}Timestamp": value.isoformat()}
    if isinstance(value, str) and value not in ("earliest", "latest"):
        return {f"{side}Timestamp": value}
    return {f"{side}Offsets": value}


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return options as Spark wants them; None is left out."""
    found = {}
    for name, value in options.items():
        if value is None:
            continue
        if name.endswith("Offsets") and isinstance(value, int):
            value = {str(options["topic"]): value}
        found[name] = value if isinstance(value, str) else json.dumps(value)
    return found
