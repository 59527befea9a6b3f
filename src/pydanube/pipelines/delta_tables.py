"""Delta tables as sinks of pipelines: each batch in one commit, known by who wrote it.

The commit of a batch carries an application transaction (pipeline/flow/query, batch) and, for
people and for `--from-sink`, the offsets that the sources had reached.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from typing_extensions import override

from pydanube.errors import Conflict
from pydanube.pipelines.errors import FlowRefused
from pydanube.pipelines.lakes import (
    BATCH_KEY,
    FLOW_KEY,
    OFFSETS_KEY,
    QUERY_KEY,
    BatchId,
    FileLake,
    LastBatch,
    PartWriter,
    StoredPart,
    WriteMode,
    keyed,
    nullable,
)
from pydanube.runtime.clock import SystemClock
from pydanube.tables.columns import Columns, single_arrays
from pydanube.tables.delta_files import DeltaFiles
from pydanube.tables.lake import DataFile
from pydanube.tables.lake_types import same_shape
from pydanube.tables.partitioning import PartitionField

COMMITS_LOOKED_AT_MAX = 10_000
_HARMLESS = {"timestampNtz"}
"""What a reader must know and that changes nothing about which rows there are."""


class DeltaLake(FileLake):
    """The Delta table at a path or URL."""

    def __init__(self, path: str, storage: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._storage = dict(storage or {}) or None

    @property
    @override
    def name(self) -> str:
        return self._path

    @property
    @override
    def counts(self) -> Literal["version", "snapshot"]:
        return "version"

    @override
    def write(
        self,
        rows: pa.Table,
        batch: BatchId,
        *,
        mode: WriteMode = "append",
        key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
    ) -> int:
        table = self._open()
        if table is not None and _has(table, batch):
            return int(table.version())
        rows = nullable(keyed(rows, key, self.name) if mode == "upsert" else rows)
        properties = _properties(batch)
        if mode == "upsert" and table is not None:
            _merge(table, rows, key, properties)
            if not _has(table, batch):
                # A merge that changes nothing makes no commit: the batch is noted by itself.
                write_deltalake(
                    table, rows.slice(0, 0), mode="append", commit_properties=properties
                )
        else:
            write_deltalake(
                self._path if table is None else table,
                rows,
                mode="overwrite" if mode == "complete" else "append",
                schema_mode="overwrite" if mode == "complete" else "merge",
                partition_by=list(partition_by) or None,
                storage_options=self._storage,
                commit_properties=properties,
            )
        written = self._open()
        assert written is not None, "it was written just now"
        return int(written.version())

    @override
    def part_writer(
        self, columns: pa.Schema, partition_by: Sequence[str] = ()
    ) -> "DeltaPartWriter":
        table = self._open() or self._create(columns, partition_by)
        cut_by = tuple(table.metadata().partition_columns)
        return DeltaPartWriter(self._path, self._storage or {}, cut_by)

    @override
    def add(
        self,
        files: Sequence[DataFile],
        columns: pa.Schema,
        batch: BatchId,
        *,
        mode: WriteMode = "append",
        partition_by: Sequence[str] = (),
    ) -> int:
        assert mode != "upsert", "rows are replaced by key from memory"
        writer = self.part_writer(columns, partition_by)
        table = self._open()
        assert table is not None, "whoever wrote the files had it made"
        if _has(table, batch):
            writer.delete(files)
            return int(table.version())
        try:
            wider = pa.schema([]) if mode == "complete" else _wider(table, columns, self.name)
        except FlowRefused:
            writer.delete(files)
            raise
        if len(wider):
            # A commit of files does not widen a table, and says nothing about it.
            table.alter.add_columns(Schema.from_arrow(wider).fields)
        now_ms = SystemClock().now_ms()
        actions: list[AddAction | RemoveAction] = [
            AddAction(each.path, each.bytes, each.partition, now_ms, True, each.stats)
            for each in files
        ]
        table.create_write_transaction(
            actions,
            "overwrite" if mode == "complete" else "append",
            Schema.from_arrow(columns) if mode == "complete" else table.schema(),
            partition_by=list(table.metadata().partition_columns),
            commit_properties=_properties(batch),
        )
        return int(table.version())

    @override
    def parts(self) -> list[StoredPart]:
        table = self._open()
        if table is None:
            return []
        if not _is_plain(table):
            raise Conflict(f"{self.name} has deleted rows or renamed columns; its files do not")
        schema = pa.schema(table.schema()).serialize().to_pybytes()
        found = pa.table(table.get_add_actions(flatten=False)).to_pylist()
        return [
            DeltaPart(
                self._path,
                self._storage or {},
                unquote(each["path"]),
                each.get("partition") or {},
                schema,
            )
            for each in found
        ]

    def _create(self, columns: pa.Schema, partition_by: Sequence[str]) -> DeltaTable:
        DeltaTable.create(
            self._path,
            schema=Schema.from_arrow(columns),
            mode="ignore",
            partition_by=list(partition_by) or None,
            storage_options=self._storage,
        )
        table = self._open()
        assert table is not None, "it was created just now"
        return table

    @override
    def last_batch(self, flow: str) -> LastBatch | None:
        table = self._open()
        if table is None:
            return None
        for commit in table.history(COMMITS_LOOKED_AT_MAX):
            if commit.get(FLOW_KEY) == flow:
                return LastBatch(
                    query=str(commit[QUERY_KEY]),
                    number=int(commit[BATCH_KEY]),
                    offsets=json.loads(commit.get(OFFSETS_KEY) or "{}"),
                )
        return None

    @override
    def columns(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else _plain(pa.schema(table.schema()))

    @override
    def rows(self) -> pa.Table | None:
        table = self._open()
        if table is None:
            return None
        found = pa.table(table.scan())
        return found.cast(_plain(found.schema))

    def _open(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._path, storage_options=self._storage)
        except TableNotFoundError:
            return None


class DeltaPartWriter(PartWriter):
    """Writes files of a Delta table."""

    def __init__(self, path: str, storage: Mapping[str, str], partition_by: Sequence[str]) -> None:
        self._path = path
        self._storage = dict(storage)
        self._partitioning = [PartitionField("identity", each) for each in partition_by]

    @override
    def write(self, name: str, rows: pa.Table) -> list[DataFile]:
        return DeltaFiles(self._path, self._storage).write(name, rows, self._partitioning)

    @override
    def delete(self, files: Sequence[DataFile]) -> None:
        DeltaFiles(self._path, self._storage).delete(files)


class DeltaPart(StoredPart):
    """A file of a Delta table, and the partition's values, which are not in it."""

    def __init__(
        self,
        path: str,
        storage: Mapping[str, str],
        file: str,
        partition: Mapping[str, object],
        schema: bytes,
    ) -> None:
        self._path = path
        self._storage = dict(storage)
        self._file = file
        self._partition = dict(partition)
        self._schema = schema

    @override
    def read(self) -> pa.Table:
        columns = Columns(pa.ipc.read_schema(pa.py_buffer(self._schema)))
        with DeltaFiles(self._path, self._storage).filesystem().open_input_file(self._file) as file:
            rows = pq.read_table(file)
        arrays = single_arrays(rows.cast(_plain(rows.schema)))
        for name, value in self._partition.items():
            kind = columns.schema.field(name).type
            arrays[name] = pa.repeat(pa.scalar(value, kind), len(rows))
        return columns.arranged(arrays, len(rows))


def _is_plain(table: DeltaTable) -> bool:
    """Tell whether the rows of its files are the table's, column by column."""
    protocol = table.protocol()
    return protocol.min_reader_version != 2 and set(protocol.reader_features or ()) <= _HARMLESS


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(each.name, same_shape(each.type)) for each in schema])


def _wider(table: DeltaTable, columns: pa.Schema, name: str) -> pa.Schema:
    """Return the columns that the table lacks; FlowRefused if one is of another type."""
    there = Columns(pa.schema(table.schema()))
    for each in columns:
        problem = there.admit(each.name, same_shape(each.type))
        if problem is not None:
            raise FlowRefused(
                f"the rows do not fit the table {name}: {problem}. Change the step that makes the "
                "column, or give the sink another table"
            )
    return there.added


def _properties(batch: BatchId) -> CommitProperties:
    return CommitProperties(
        custom_metadata={
            FLOW_KEY: batch.flow,
            QUERY_KEY: batch.query,
            BATCH_KEY: str(batch.number),
            OFFSETS_KEY: json.dumps(batch.offsets),
        },
        app_transactions=[Transaction(batch.application, batch.number)],
    )


def _has(table: DeltaTable, batch: BatchId) -> bool:
    table.update_incremental()
    reached = table.transaction_version(batch.application)
    return reached is not None and reached >= batch.number


def _merge(
    table: DeltaTable, rows: pa.Table, key: Sequence[str], properties: CommitProperties
) -> None:
    condition = " AND ".join(f"old.`{name}` = new.`{name}`" for name in key)
    (
        table.merge(
            rows,
            condition,
            source_alias="new",
            target_alias="old",
            merge_schema=True,
            commit_properties=properties,
        )
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
