"""History into a Delta table, in parallel: tasks write the files, the driver commits their names.

A replay fixes one vector of offsets when it begins and brings it in one or more commits. Each
commit carries the number of its step as an application transaction, and the job itself: one that
was interrupted goes on behind its last commit, and one that is done adds nothing. Files of a step
that was not committed are no part of the table; `vacuum` removes them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from pydanube.errors import Conflict, Corruption, InvalidRequest, NotSupported
from pydanube.runtime.blocking import environment
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.randomness import SystemRandomness
from pydanube.spark.frames import Boundary, boundary_options, history, option_texts
from pydanube.spark.options import DEFAULT_URL, URL_VARIABLE, read_options
from pydanube.spark.replay_plan import (
    COMMIT_ROWS,
    ReplayJob,
    check_same_topics,
    plan_job,
    recall,
    remember,
)
from pydanube.spark.source.batch_reader import resolve_range
from pydanube.spark.source.rows import COLUMNS, check_columns

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame, SparkSession

JOB_KEY = "danube.replay"
_COMMITS_LOOKED_AT_MAX = 100_000
_TIMES = "spark.sql.parquet.outputTimestampType"


class Replayed(Struct, frozen=True, kw_only=True):
    """How far a replay is."""

    topic: str
    into: str
    job: str
    rows: int
    """Of the whole job."""
    rows_before: int
    """Those of them that were in the table before this run."""
    rows_added: int
    steps: int
    steps_done: int


def replay(
    spark: "SparkSession",
    topic: str,
    into: str,
    start: Boundary = None,
    end: Boundary = None,
    columns: Sequence[str] | None = None,
    *,
    job: str | None = None,
    commit_rows: int = COMMIT_ROWS,
    compression: str = "zstd",
    storage: Mapping[str, str] | None = None,
    dry_run: bool = False,
    progress: Callable[[Replayed], None] = lambda _: None,
    **options: object,
) -> Replayed:
    """Bring the history of a topic into the Delta table at `into`, each message once.

    The table is created if there is none; one with other columns is refused before anything is
    written. `job` names the replay within the table (by default after the topic): under the same
    name it goes on, or has nothing left to do. Spark and deltalake must both be able to write
    `into`; `storage` are deltalake's options. With `dry_run` nothing is written. A step that has
    fewer rows than offsets is not committed, unless `failOnDataLoss` is False.
    """
    table = _DeltaTarget(into, storage)
    names = check_columns(tuple(columns or COLUMNS), "columns")
    name = job or topic
    found = _job(table, topic, name, start, end, commit_rows, options)
    before = table.steps_done(found)
    state = _state(found, into, before, before)
    if dry_run:
        return state
    lenient = str(options.get("failOnDataLoss", "true")).lower() == "false"
    for step in range(before, found.steps):
        starts, ends = found.bounds(step)
        frame = history(spark, topic, starts, ends, names, **options)
        table.check_columns(frame)
        rows = found.rows_until(step + 1) - found.rows_until(step)
        table.append(frame, rows, found, step, compression, lenient=lenient)
        state = _state(found, into, before, step + 1)
        progress(state)
    return state


def _job(
    table: "_DeltaTarget",
    topic: str,
    job: str,
    start: Boundary,
    end: Boundary,
    commit_rows: int,
    options: Mapping[str, object],
) -> ReplayJob:
    given = {
        "topic": topic,
        **options,
        **boundary_options("starting", start),
        **boundary_options("ending", end),
    }
    remembered = table.job(topic, job)
    if remembered is not None:
        given = {"topic": topic, **options}
    parsed = read_options(
        option_texts(given),
        streaming=False,
        now_ms=SystemClock().now_ms(),
        default_url=environment(URL_VARIABLE) or DEFAULT_URL,
    )
    found = resolve_range(parsed, ())
    ids = {name: state.id for name, state in found.states.items()}
    if remembered is not None:
        check_same_topics(remembered, ids)
        return remembered
    return plan_job(topic, job, ids, found.bounds, commit_rows)


def _state(job: ReplayJob, into: str, before: int, done: int) -> Replayed:
    return Replayed(
        topic=job.topic,
        into=into,
        job=job.job,
        rows=job.rows,
        rows_before=job.rows_until(before),
        rows_added=job.rows_until(done) - job.rows_until(before),
        steps=job.steps,
        steps_done=done,
    )


class _DeltaTarget:
    """The table: what it holds of a replay, and how files become part of it."""

    def __init__(self, path: str, storage: Mapping[str, str] | None) -> None:
        self._path = path.rstrip("/")
        self._storage = dict(storage or {}) or None

    def _open(self) -> "DeltaTable | None":
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import TableNotFoundError
        except ImportError as error:
            raise NotSupported("deltalake is missing: pip install 'pydanube[spark]'") from error
        # Spark says s3a where everybody else says s3.
        path = self._path.replace("s3a://", "s3://", 1)
        try:
            return DeltaTable(path, storage_options=self._storage)
        except TableNotFoundError:
            return None

    def job(self, topic: str, job: str) -> ReplayJob | None:
        """Return the job of that name that has begun to fill the table."""
        table = self._open()
        if table is None:
            return None
        for commit in table.history(_COMMITS_LOOKED_AT_MAX):
            if commit.get(f"{JOB_KEY}.name") == job:
                return recall(str(commit[JOB_KEY]), topic, job)
        return None

    def steps_done(self, job: ReplayJob) -> int:
        """Return how many steps are in the table."""
        table = self._open()
        last = None if table is None else table.transaction_version(job.application)
        return 0 if last is None else last + 1

    def check_columns(self, frame: "DataFrame") -> None:
        """Refuse a table that is not made for these rows."""
        table = self._open()
        if table is None:
            return
        if table.metadata().partition_columns:
            raise NotSupported(f"{self._path} is partitioned, which a replay does not write")
        kinds = {field.name: str(field.type) for field in table.schema().fields}
        wanted = {field.name: str(field.type) for field in _delta_schema(frame).fields}
        if kinds != wanted:
            raise InvalidRequest(
                f"{self._path} has the columns {_listed(kinds)}; the replay has {_listed(wanted)}. "
                "Choose others with columns, or replay into a new table"
            )

    def append(
        self,
        frame: "DataFrame",
        rows: int,
        job: ReplayJob,
        step: int,
        compression: str,
        *,
        lenient: bool,
    ) -> None:
        """Write the files of a step in tasks, then make them part of the table in one commit."""
        directory = f"danube-replay-{SystemRandomness().below(2**64):016x}"
        spark = frame.sparkSession
        before = spark.conf.get(_TIMES)
        spark.conf.set(_TIMES, "TIMESTAMP_MICROS")  # The only ones that Delta knows.
        try:
            frame.write.option("compression", compression).option(
                "mapreduce.fileoutputcommitter.marksuccessfuljobs", "false"
            ).parquet(f"{self._path}/{directory}")
        finally:
            spark.conf.set(_TIMES, before or "TIMESTAMP_MICROS")
        files = _files_of(spark, f"{self._path}/{directory}", frame) if rows else []
        written = sum(file.rows for file in files)
        if written > rows or (written < rows and not lenient):
            raise Corruption(
                f"{rows} messages of {job.topic} were to be written and {written} were; nothing "
                f"was committed to {self._path}. Look for the cause with danube spark verify"
            )
        self._commit(frame, [file.action(directory) for file in files], job, step)

    def _commit(
        self, frame: "DataFrame", actions: "list[AddAction]", job: ReplayJob, step: int
    ) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction

        schema = _delta_schema(frame)
        table = self._open()
        if table is None:
            path = self._path.replace("s3a://", "s3://", 1)
            table = DeltaTable.create(path, schema, mode="ignore", storage_options=self._storage)
        if self.steps_done(job) != step:
            raise Conflict(
                f"step {step} of the replay {job.job} is in {self._path} already: another run of "
                "it is under way. Nothing was added; let that one finish"
            )
        table.create_write_transaction(
            list(actions),
            "append",
            schema,
            commit_properties=CommitProperties(
                custom_metadata={JOB_KEY: remember(job), f"{JOB_KEY}.name": job.job},
                app_transactions=[Transaction(job.application, step)],
            ),
        )


class _WrittenFile(Struct, frozen=True, kw_only=True):
    """A file that tasks have written."""

    name: str
    size: int
    modified_ms: int
    rows: int
    least: dict[str, int]
    most: dict[str, int]

    def action(self, directory: str) -> "AddAction":
        from deltalake.transaction import AddAction

        stats = {"numRecords": self.rows, "minValues": self.least, "maxValues": self.most}
        return AddAction(
            f"{directory}/{self.name}", self.size, {}, self.modified_ms, True, json.dumps(stats)
        )


def _files_of(spark: "SparkSession", path: str, frame: "DataFrame") -> list[_WrittenFile]:
    """Ask Spark what it wrote: rows and bounds of each file, from two columns of it."""
    from pyspark.sql.functions import col, count, lit, unix_millis
    from pyspark.sql.functions import max as greatest
    from pyspark.sql.functions import min as smallest

    bounded = [name for name in ("partition", "offset") if name in frame.columns]
    rows = (
        spark.read.schema(frame.schema)
        .parquet(path)
        .groupBy(
            col("_metadata.file_name").alias("name"),
            col("_metadata.file_size").alias("size"),
            unix_millis(col("_metadata.file_modification_time")).alias("modified_ms"),
        )
        .agg(
            count(lit(1)).alias("rows"),
            *(smallest(name).alias(f"least_{name}") for name in bounded),
            *(greatest(name).alias(f"most_{name}") for name in bounded),
        )
        .collect()
    )
    return [
        _WrittenFile(
            name=row["name"],
            size=row["size"],
            modified_ms=row["modified_ms"],
            rows=row["rows"],
            least={name: row[f"least_{name}"] for name in bounded},
            most={name: row[f"most_{name}"] for name in bounded},
        )
        for row in rows
    ]


def _delta_schema(frame: "DataFrame") -> "Schema":
    from deltalake import Schema
    from pyspark.sql.pandas.types import to_arrow_schema

    return Schema.from_arrow(to_arrow_schema(frame.schema, timezone="UTC"))


def _listed(kinds: Mapping[str, str]) -> str:
    return ", ".join(sorted(kinds))
