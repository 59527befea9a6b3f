"""Rows into tables by many hands: Spark's tasks write the files, the driver commits their names.

No more than a little of each task passes through the driver, however much there is. A task that
dies, or runs twice, leaves files that no commit names: `vacuum` removes them.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from pydanube.pipelines.lakes import (
    BatchId,
    FileLake,
    Lake,
    PartWriter,
    StoredPart,
    WriteMode,
    nullable,
)
from pydanube.runtime.randomness import SystemRandomness
from pydanube.tables.lake import DataFile
from pydanube.tables.spark_workers import SparkWorkers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL_BYTES = 1024 * 1024
"""What a task hands back instead of writing a file of its own: one file is made of all of it."""
FILE_BYTES = 128 * 1024 * 1024
ROWS_AT_ONCE = 100_000
"""Rows with a key that are in the driver's memory at a time."""

_ANSWERS = pa.schema([("answer", pa.binary())])
_ROWS = pa.schema([("rows", pa.binary())])


class Part(Struct, frozen=True, kw_only=True):
    """What a task has written, or hands back because it is little."""

    rows: int
    files: list[DataFile] = []
    small: bytes = b""


class Copied(Struct, frozen=True, kw_only=True):
    """A file of a table whose rows are to be written to another one."""

    number: int


class Stored(Struct, frozen=True, kw_only=True):
    """What a batch came to in a table."""

    rows: int
    version: int


class PartTask:
    """What a task of Spark does with its rows."""

    def __init__(self, writer: PartWriter, columns: pa.Schema, small_bytes: int) -> None:
        self._writer = writer
        self._columns = columns.serialize().to_pybytes()
        self._small_bytes = small_bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows, and yield what came of it."""
        columns = pa.ipc.read_schema(pa.py_buffer(self._columns))
        files: list[DataFile] = []
        rows = size = 0
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch.cast(columns))
            rows += batch.num_rows
            size += batch.nbytes
            if size >= FILE_BYTES:
                files += self.written(pa.Table.from_batches(waiting))
                waiting, size = [], 0
        rest = pa.Table.from_batches(waiting, schema=columns)
        small = b""
        if not files and rest.nbytes <= self._small_bytes:
            small = _packed(rest) if len(rest) else b""
        elif len(rest):
            files += self.written(rest)
        answer = msgspec.msgpack.encode(Part(rows=rows, files=files, small=small))
        yield pa.RecordBatch.from_pylist([{"answer": answer}], schema=_ANSWERS)

    def written(self, rows: pa.Table) -> list[DataFile]:
        """Write rows under a name that no other attempt has."""
        return self._writer.write(_new_name(), rows)


def write_frame(
    frame: "DataFrame",
    lake: FileLake,
    batch: BatchId,
    *,
    mode: WriteMode = "append",
    partition_by: Sequence[str] = (),
    small_bytes: int = SMALL_BYTES,
) -> Stored:
    """Bring the rows of a frame into a table in one commit; they are not gathered before.

    `mode` is append or complete: rows with a key are replaced by `write_keyed`.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = nullable(to_arrow_schema(frame.schema, timezone="UTC").empty_table()).schema
    writer = lake.part_writer(columns, partition_by)
    task = PartTask(writer, columns, small_bytes)
    answers = frame.mapInArrow(task, "answer binary").toArrow()
    parts = [msgspec.msgpack.decode(each.as_py(), type=Part) for each in answers.column("answer")]
    little = [_unpacked(each.small) for each in parts if each.small]
    rest = pa.concat_tables([columns.empty_table(), *little])
    files = [each for part in parts for each in part.files]
    if not files:
        version = lake.write(rest, batch, mode=mode, partition_by=partition_by)
    else:
        if len(rest):
            files += writer.write(_new_name(), rest)
        version = lake.add(files, columns, batch, mode=mode, partition_by=partition_by)
    return Stored(rows=sum(each.rows for each in parts), version=version)


def write_keyed(frame: "DataFrame", lake: Lake, flow: str, query: str, key: Sequence[str]) -> int:
    """Replace rows by key, some keys at a time, each time in a commit; return how many rows.

    It may be cut off and done again: what a key has by then is the same.
    """
    parts = -(-frame.count() // ROWS_AT_ONCE)
    if not parts:
        return 0
    rows = 0
    # One partition after the other, and each is one row: the driver holds no more than two.
    packed = frame.repartition(parts, *key).mapInArrow(_pack, "rows binary")
    for number, row in enumerate(packed.toLocalIterator()):
        some = _unpacked(bytes(row["rows"]))
        who = BatchId(flow=flow, query=f"{query}/{parts}", number=number)
        lake.write(some, who, mode="upsert", key=key)
        rows += len(some)
    return rows


def copy_table(
    spark: "SparkSession",
    source: FileLake,
    target: FileLake,
    batch: BatchId,
    partition_by: Sequence[str],
) -> int:
    """Let the rows of one table take the place of another's in one commit; return how many."""
    parts = source.parts()
    columns = source.columns()
    assert columns is not None, "the table is there"
    work = _Copy(parts, target.part_writer(columns, partition_by))
    tasks = [Copied(number=number) for number in range(len(parts))]
    found = SparkWorkers(spark).run(work, tasks, Part)
    files = [each for part in found for each in part.files]
    target.add(files, columns, batch, mode="complete", partition_by=partition_by)
    return sum(each.rows for each in found)


class _Copy:
    """What a task does with one file."""

    def __init__(self, parts: Sequence[StoredPart], writer: PartWriter) -> None:
        self._parts = parts
        self._writer = writer

    def __call__(self, task: Copied) -> Part:
        rows = self._parts[task.number].read()
        files = self._writer.write(_new_name(), rows) if len(rows) else []
        return Part(rows=len(rows), files=files)


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a task as one value; nothing, if there is none."""
    found = list(batches)
    if found:
        packed = _packed(pa.Table.from_batches(found))
        yield pa.RecordBatch.from_pylist([{"rows": packed}], schema=_ROWS)


def _new_name() -> str:
    return f"part-{SystemRandomness().below(2**64):016x}"


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as out:
        out.write_table(rows)
    return bytes(sink.getvalue())


def _unpacked(data: bytes) -> Any:  # noqa: ANN401  pyarrow has no types.
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()
