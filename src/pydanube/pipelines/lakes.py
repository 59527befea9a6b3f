"""Tables as sinks of pipelines: what a batch is known by, and what is asked of every format.

A commit of a batch holds its rows, who wrote it and the offsets that the sources had reached: a
batch that is there already is not written again, and a lost checkpoint can be told from the table.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.pipelines.definitions import Scalar
from pydanube.pipelines.errors import FlowRefused
from pydanube.tables.lake import DataFile

FLOW_KEY = "danube.flow"
QUERY_KEY = "danube.query"
BATCH_KEY = "danube.batch"
OFFSETS_KEY = "danube.offsets"

WriteMode = Literal["append", "upsert", "complete"]

_ORDER = ("topic", "partition", "offset")


class BatchId(Struct, frozen=True, kw_only=True):
    """Who writes a batch."""

    flow: str
    query: str
    number: int
    offsets: Mapping[str, Mapping[str, int]] = {}
    """Reached by the sources with this batch: offsets by partition, by source."""

    @property
    def application(self) -> str:
        """Return the name of the query for transactions of a table."""
        return f"{self.flow}/{self.query}"


class LastBatch(Struct, frozen=True, kw_only=True):
    """What a table says about the flow that writes it."""

    query: str
    number: int
    offsets: dict[str, dict[str, int]]

    def includes(self, batch: BatchId) -> bool:
        """Tell whether a batch is in the table."""
        return self.query == batch.query and self.number >= batch.number


class PartWriter(Protocol):
    """Writes files of a table that are in no commit yet. It travels to Spark's workers."""

    def write(self, name: str, rows: pa.Table) -> list[DataFile]:
        """Write rows to files of that name, one per partition of the table."""

    def delete(self, files: Sequence[DataFile]) -> None:
        """Delete files that are in no commit, as far as they are there."""


class StoredPart(Protocol):
    """One file of a table. It travels to Spark's workers."""

    def read(self) -> pa.Table:
        """Return the rows of the file, with all columns of the table."""


class Lake(Protocol):
    """One table; it may not exist yet. Whoever calls it blocks."""

    @property
    def name(self) -> str:
        """What the table is called, for people."""

    @property
    def counts(self) -> Literal["version", "snapshot"]:
        """What the table calls its states."""

    def write(
        self,
        rows: pa.Table,
        batch: BatchId,
        *,
        mode: WriteMode = "append",
        key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
    ) -> int:
        """Bring a batch into the table in one commit, unless it is there; return its state.

        `upsert` replaces rows of the same key, `complete` all rows.
        """

    def last_batch(self, flow: str) -> LastBatch | None:
        """Return the newest batch of a flow; None if the flow never wrote there."""

    def columns(self) -> pa.Schema | None:
        """Return the columns; None: there is no table."""

    def rows(self) -> pa.Table | None:
        """Return everything; None: there is no table."""


@runtime_checkable
class FileLake(Lake, Protocol):
    """A table that is made of files, which may be written ahead of the commit, anywhere."""

    def part_writer(self, columns: pa.Schema, partition_by: Sequence[str] = ()) -> PartWriter:
        """Return what writes rows with these columns anywhere, for `add` to commit."""

    def add(
        self,
        files: Sequence[DataFile],
        columns: pa.Schema,
        batch: BatchId,
        *,
        mode: WriteMode = "append",
        partition_by: Sequence[str] = (),
    ) -> int:
        """Bring a batch that is in files into the table in one commit; return the table's state.

        If the batch is there, the files are deleted. `complete` replaces all rows; `upsert` is for
        `write` alone.
        """

    def parts(self) -> list[StoredPart]:
        """Return all files of the table; Conflict if the files are not all there is to it."""


def keyed(rows: pa.Table, key: Sequence[str], table: str) -> pa.Table:
    """Return the last row of each key; FlowRefused if rows have none, or no order."""
    missing = [name for name in key if name not in rows.column_names]
    if missing:
        raise FlowRefused(
            f"the sink's key names {', '.join(missing)}; the columns are "
            f"{', '.join(rows.column_names)}"
        )
    lacking = sum(rows.column(name).null_count for name in key)
    if lacking:
        raise FlowRefused(
            f"{lacking} rows for {table} have no {' or '.join(key)}, which is the sink's key; send "
            f"them elsewhere with an expectation such as {key[0]} IS NOT NULL"
        )
    order = [name for name in _ORDER if name in rows.column_names]
    ordered = rows.sort_by([(name, "ascending") for name in (*key, *order)]).combine_chunks()
    if len(ordered) < 2:
        return rows
    ends = pa.chunked_array([pa.repeat(pa.scalar(False), len(ordered) - 1)])
    for name in key:
        column = ordered.column(name)
        ends = pc.or_(ends, pc.not_equal(column.slice(0, len(ordered) - 1), column.slice(1)))
    last = pa.chunked_array([*ends.chunks, pa.array([True])])
    found = ordered.filter(last)
    if len(found) < len(rows) and "offset" not in order:
        raise FlowRefused(
            f"a batch for {table} has several rows of one key ({', '.join(key)}), and nothing says "
            "which is the last: keep the column offset in the flow, or group by the key"
        )
    return found


def nullable(rows: pa.Table) -> pa.Table:
    """Return rows whose columns may be null: a later batch may lack one of them."""
    return rows.cast(pa.schema([each.with_nullable(True) for each in rows.schema]))


def storage_options(options: Mapping[str, Scalar]) -> dict[str, str]:
    """Return options as texts."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in options.items()
    }
