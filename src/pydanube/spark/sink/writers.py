"""`write` and `writeStream` of `format("danube")`: each row once, also when it is repeated."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Self

import pyarrow as pa
from msgspec import structs
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from pydanube.errors import Conflict, InvalidRequest, NotSupported
from pydanube.runtime.randomness import SystemRandomness
from pydanube.spark.options import Access, WriteOptions, write_options
from pydanube.spark.sink.frames import FrameColumns, check_frame
from pydanube.spark.sink.numbering import TaskIdentity, job_owner, stream_owner
from pydanube.spark.sink.task import TaskResult, WritingTask
from pydanube.spark.workers import keep_what_is_loaded, use_memory_again

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Spark tells a task of a stream by these who it works for."""


@dataclasses.dataclass
class TaskWritten(WriterCommitMessage):
    """What a task tells the driver."""

    result: TaskResult


class BatchWriter(DataSourceArrowWriter):
    """Appends a frame. A task that runs twice, or a job that runs again by its id, adds nothing."""

    def __init__(self, options: WriteOptions, columns: FrameColumns) -> None:
        self._columns = columns
        if options.job_id is None and options.producer is None:
            # Tasks get this instance: repeats within the job are known by it.
            drawn = f"{SystemRandomness().below(2**64):016x}"
            options = structs.replace(options, job_id=drawn)
        self._options = options

    @property
    def access(self) -> Access:
        """How the brokers are reached."""
        return self._options.access

    @classmethod
    def of(
        cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool, default_url: str
    ) -> Self:
        """Check options and columns; refuse what a topic cannot do."""
        if overwrite:
            raise InvalidRequest("a topic cannot be overwritten; use mode('append')")
        given = write_options(options, streaming=False, default_url=default_url)
        return cls(given, check_frame(_types(schema), given))

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options = self._options
        owner = f"spark/{options.producer}"
        if options.producer is None:
            assert options.job_id is not None
            owner = job_owner(options.job_id)
        identity = TaskIdentity(owner=owner, epoch=options.epoch or 0, task=_task().partitionId())
        return _write(WritingTask(options, self._columns, identity), iterator)

    @override
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        check_counts(messages)
        keep_what_is_loaded()

    @override
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Undo nothing: what tasks have stored is stored, and a repeat knows it by its numbers."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends the batches of a stream. Holds no state: Spark builds it anew for every batch."""

    def __init__(self, options: WriteOptions, columns: FrameColumns) -> None:
        self._options = options
        self._columns = columns

    @classmethod
    def of(
        cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool, default_url: str
    ) -> Self:
        """Check options and columns; refuse what a topic cannot do."""
        if overwrite:
            raise InvalidRequest("a topic is only appended to; use outputMode('append')")
        # Spark hands its own options through; checkpoint and name of the query are not for us.
        own = {name: value for name, value in options.items() if name.lower() not in _SPARKS}
        given = write_options(own, streaming=True, default_url=default_url)
        return cls(given, check_frame(_types(schema), given))

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        query = context.getLocalProperty(QUERY_ID)
        batch = context.getLocalProperty(BATCH_ID)
        if not query or not batch:
            raise NotSupported(
                f"this Spark does not tell its tasks {QUERY_ID} and {BATCH_ID}, by which rows are "
                "stored once; use a supported release, or option guarantee=at_least_once in a "
                "foreachBatch"
            )
        identity = TaskIdentity(
            owner=stream_owner(query), epoch=int(batch), task=context.partitionId()
        )
        return _write(WritingTask(self._options, self._columns, identity), iterator)

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        check_counts(messages)
        keep_what_is_loaded()

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Undo nothing: abort also follows a failed commit, and the same batch comes again."""


_SPARKS = ("checkpointlocation", "path", "queryname")


def check_counts(messages: list[WriterCommitMessage | None]) -> None:
    """Refuse to call a batch done of which a row is not known to be durable."""
    for message in messages:
        if not isinstance(message, TaskWritten):
            raise Conflict("a task has not said what it stored; the batch must run again")
        if message.result.rows != message.result.stored:
            raise Conflict(
                f"a task had {message.result.rows} rows, and {message.result.stored} of them are "
                "stored; the batch must run again"
            )


def _write(task: WritingTask, rows: Iterator[pa.RecordBatch]) -> TaskWritten:
    use_memory_again()
    result = task.run(rows)
    keep_what_is_loaded()
    return TaskWritten(result)


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written in tasks"
    return context


def _types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
