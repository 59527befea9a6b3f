"""Delta tables, through deltalake.

A physical topic's position is the version of an application transaction, `danube:<topic>:<id>`.
A commit that moves it fails if another one has moved it since the table was loaded: that is the
compare-and-set. Which ids the table holds is a property of the table, set before the first rows.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction
from msgspec import Struct
from typing_extensions import override

from pydanube.errors import Conflict, NotSupported
from pydanube.runtime.clock import Clock
from pydanube.tables.columns import Columns, single_arrays
from pydanube.tables.delta_files import DeltaFiles, partition_text
from pydanube.tables.errors import (
    CommitOutcomeUnknown,
    TableGuardAltered,
    TableOfAnotherTopic,
    check_owner,
    check_shape,
)
from pydanube.tables.lake import (
    Commit,
    DataFile,
    Joined,
    LakeSnapshot,
    LakeTable,
    Run,
    StoredFile,
    TableFacts,
    Upsert,
    place_order,
)
from pydanube.tables.lake_types import same_shape
from pydanube.tables.partitioning import PartitionField, partition_column, with_values
from pydanube.tables.state import Position

TOPIC_PROPERTY = "danube.topic"
SHAPE_PROPERTY = "danube.shape"
IDS_PROPERTY = "danube.topic_ids"
NEXT_PROPERTY = "danube.next"
"""What ids and shape are, once a commit that replaces everything has happened."""
COMMIT_KEY = "danube.commit"
COMMITS_APP = "danube:commits"
GUARDED = "delta.setTransactionRetentionDuration"

_HISTORY_MAX = 10_000
_DELETED = "__danube_deleted"


class DeltaLakeTable(LakeTable):
    """A Delta table at a URI, for one topic."""

    def __init__(
        self,
        uri: str,
        topic: str,
        clock: Clock,
        *,
        partitioning: Sequence[PartitionField] = (),
        storage_options: Mapping[str, str] | None = None,
        shape: str = "",
    ) -> None:
        self._uri = uri
        self._topic = topic
        self._clock = clock
        self._partitioning = tuple(partitioning)
        self._shape = shape
        self._options = dict(storage_options or {})

    @property
    @override
    def name(self) -> str:
        return self._uri

    @override
    def load(self) -> "DeltaSnapshot | None":
        table = self.open()
        if table is None:
            return None
        if self._owner_of(table) is None:
            table.alter.set_table_properties(self._marks(), raise_if_not_exists=False)
            return self.load()
        return DeltaSnapshot(table, self._topic, self._partitioning, self._options, self._clock)

    @override
    def check(self) -> None:
        table = self.open()
        if table is not None:
            self._owner_of(table)
        else:
            self._check_free()

    def _owner_of(self, table: DeltaTable) -> str | None:
        """Return whose table it is; None: nobody's yet. Refuse if it must not be written to."""
        settings = table.metadata().configuration
        if GUARDED in settings:
            raise TableGuardAltered(
                f"table {self._uri} has {GUARDED} set, so the offsets it holds would expire. "
                "Unset the property; nothing was written"
            )
        owner = settings.get(TOPIC_PROPERTY)
        if owner not in (None, self._topic):
            raise TableOfAnotherTopic(
                f"table {self._uri} holds topic {owner}, not {self._topic}; name another table"
            )
        check_shape(self._uri, _facts_of(table).shape, self._shape)
        return owner

    @override
    def create(self, columns: pa.Schema) -> None:
        self._check_free()
        columns = _with_partitions(columns, self._partitioning)
        try:
            DeltaTable.create(
                self._uri,
                schema=columns,
                mode="ignore",
                partition_by=[each.name for each in self._partitioning],
                configuration=self._marks(),
                storage_options=self._options,
                raise_if_key_not_exists=False,
            )
        except CommitFailedError:
            return  # Somebody else was faster.

    def _check_free(self) -> None:
        """Refuse the place of an Iceberg table: each of the two would remove the other's files."""
        if DeltaFiles(self._uri, self._options).is_iceberg():
            raise Conflict(
                f"{self._uri} is an Iceberg table without a catalogue; nothing was written. Name "
                "another table (--table)"
            )

    @override
    def blank(self, columns: pa.Schema) -> "BlankDeltaSnapshot | None":
        table = self.open()
        if table is None:
            return None
        owner = table.metadata().configuration.get(TOPIC_PROPERTY)
        check_owner(self._uri, owner, self._topic)
        wanted = [each.name for each in self._partitioning]
        if table.metadata().partition_columns != wanted:
            there = ", ".join(table.metadata().partition_columns) or "nothing"
            raise NotSupported(
                f"table {self._uri} is partitioned by {there}, which Delta does not change under a "
                "table's name. Enable the topic with another table (--table)"
            )
        columns = _with_partitions(columns, self._partitioning)
        return BlankDeltaSnapshot(
            table,
            self._topic,
            self._partitioning,
            self._options,
            self._clock,
            columns=columns,
            shape=self._shape,
        )

    @override
    def holds(self, commit_id: str) -> bool:
        table = self.open()
        if table is None:
            return False
        return any(each.get(COMMIT_KEY) == commit_id for each in table.history(_HISTORY_MAX))

    def _marks(self) -> dict[str, str]:
        shape = {SHAPE_PROPERTY: self._shape} if self._shape else {}
        return {TOPIC_PROPERTY: self._topic, **shape}

    def open(self) -> DeltaTable | None:
        """Return the table as deltalake knows it; None: there is none."""
        try:
            return DeltaTable(self._uri, storage_options=self._options)
        except TableNotFoundError:
            return None


class DeltaSnapshot(LakeSnapshot):
    """A Delta table at one version."""

    def __init__(
        self,
        table: DeltaTable,
        topic: str,
        partitioning: Sequence[PartitionField],
        options: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._table = table
        self._topic = topic
        self._partitioning = partitioning
        self._options = dict(options)
        self._files = DeltaFiles(table.table_uri, self._options)
        self._clock = clock
        self._ids = _facts_of(table).ids
        self._positions = _positions_of(table, self._ids)

    @property
    @override
    def positions(self) -> Mapping[str, Position]:
        return self._positions

    @property
    @override
    def columns(self) -> pa.Schema:
        derived = {each.name for each in self._partitioning if each.transform != "identity"}
        schema = pa.schema(self._table.schema())
        return pa.schema([each for each in schema if each.name not in derived])

    @override
    def write(self, name: str, rows: pa.Table) -> list[DataFile]:
        return self._files.write(name, rows, self._partitioning)

    @override
    def commit(self, commit: Commit) -> bool:
        steps: list[Callable[[], None]] = []
        ids = {**self._ids, **{name: each.id for name, each in commit.positions.items()}}
        if ids != self._ids:
            steps.append(lambda: self._note(ids))
        if len(commit.added):
            fields = Schema.from_arrow(commit.added).fields
            steps.append(lambda: self._table.alter.add_columns(fields))
        for step in steps:
            if not _happens(step):
                return False
        # What was altered may have been altered on top of somebody else's rows.
        if steps and _positions_of(self._table, ids) != self._positions:
            return False
        if commit.upsert is not None:
            return self._merge(commit, commit.upsert)
        return _happens(lambda: self._append(commit))

    @override
    def delete(self, files: Sequence[DataFile]) -> None:
        self._files.delete(files)

    @override
    def remove(self, runs: Sequence[Run]) -> bool:
        wanted = " OR ".join(
            f"(partition = {run.partition} AND offset BETWEEN {run.first} AND {run.last})"
            for run in runs
        )
        return _happens(lambda: self._table.delete(wanted))

    @override
    def scan(self, columns: Sequence[str], bounds: Mapping[str, tuple[int, int]]) -> pa.Table:
        # Not through pyarrow's dataset: its threads may still call into Python, here deltalake's
        # file system, when the interpreter ends, and then abort the process.
        within = " AND ".join(
            f'"{name}" >= {low} AND "{name}" < {high}' for name, (low, high) in bounds.items()
        )
        found = pa.table(self._table.scan(columns=list(columns), predicate=within or None))
        plain = pa.schema([(each.name, same_shape(each.type)) for each in found.schema])
        return found.cast(plain)

    @override
    def files(self) -> list[StoredFile]:
        plain = self._table.protocol().min_reader_version == 1
        found = pa.table(self._table.get_add_actions(flatten=False)).to_pylist()
        return [
            StoredFile(
                path=each["path"],
                bytes=each["size_bytes"],
                partition=json.dumps(each.get("partition") or {}, sort_keys=True, default=str),
                plain=plain,
            )
            for each in found
        ]

    @override
    def join(self, name: str, paths: Sequence[str]) -> DataFile:
        columns = Columns(pa.schema(self._table.schema()))
        inside = [
            each
            for each in columns.schema.names
            if each not in self._table.metadata().partition_columns
        ]
        filesystem = self._files.filesystem()
        parts = []
        for path in paths:
            with filesystem.open_input_file(unquote(path)) as source:
                rows = pq.read_table(source)
            plain = pa.schema([(each.name, same_shape(each.type)) for each in rows.schema])
            parts.append(columns.arranged(single_arrays(rows.cast(plain)), len(rows)))
        whole = pa.concat_tables(parts).select(inside).sort_by(place_order(inside))
        partition = next(
            each.get("partition") or {}
            for each in pa.table(self._table.get_add_actions(flatten=False)).to_pylist()
            if each["path"] == paths[0]
        )
        return self._files.write_file(f"{name}.parquet", whole, partition)

    @override
    def replace(self, joined: Sequence[Joined], summary: Mapping[str, str]) -> bool:
        now_ms = self._clock.now_ms()
        there = {
            each["path"]: each
            for each in pa.table(self._table.get_add_actions(flatten=False)).to_pylist()
        }
        actions: list[AddAction | RemoveAction] = []
        for each in joined:
            file = each.file
            actions.append(
                AddAction(file.path, file.bytes, file.partition, now_ms, False, file.stats)
            )
            for path in each.paths:
                values = {
                    key: partition_text(value)
                    for key, value in (there[path].get("partition") or {}).items()
                }
                size = there[path]["size_bytes"]
                # It is written as it is listed: deltalake encodes what it is given.
                actions.append(RemoveAction(unquote(path), False, now_ms, size, values))
        # deltalake does not notice that somebody else removes the same files: only the version
        # right behind the one that was loaded will do.
        exact = CommitProperties(custom_metadata=dict(summary), max_commit_retries=0)
        return _happens(
            lambda: self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                partition_by=list(self._table.metadata().partition_columns),
                commit_properties=exact,
            )
        )

    @override
    def plain_files(self) -> list[str] | None:
        # Newer protocols have deletion vectors and column mapping; partitions leave columns out.
        if (
            self._table.protocol().min_reader_version > 1
            or self._table.metadata().partition_columns
        ):
            return None
        return list(self._table.file_uris())

    @override
    def facts(self) -> TableFacts:
        files = pa.table(self._table.get_add_actions(flatten=True))
        return TableFacts(
            version=str(self._table.version()),
            files=len(files),
            bytes=pc.sum(files.column("size_bytes")).as_py() or 0,
            snapshots=self._table.version() + 1,
            last_commit_ms=self._table.history(1)[0]["timestamp"],
        )

    def _append(self, commit: Commit) -> None:
        now_ms = self._clock.now_ms()
        actions: list[AddAction | RemoveAction] = [
            AddAction(each.path, each.bytes, each.partition, now_ms, True, each.stats)
            for each in commit.files
        ]
        self._table.create_write_transaction(
            actions,
            "append",
            self._table.schema(),
            partition_by=[each.name for each in self._partitioning],
            commit_properties=self._properties(commit),
        )

    def _note(self, ids: Mapping[str, str]) -> None:
        """Keep which ids the table holds."""
        notes = {IDS_PROPERTY: json.dumps(ids, sort_keys=True), NEXT_PROPERTY: "{}"}
        shape = _facts_of(self._table).shape
        if shape is not None:
            notes[SHAPE_PROPERTY] = shape
        self._table.alter.set_table_properties(notes, raise_if_not_exists=False)

    def _merge(self, commit: Commit, upsert: Upsert) -> bool:
        version = self._table.version()
        changes = len(upsert.rows) or len(upsert.deleted)
        if changes and not _happens(lambda: self._merge_rows(commit, upsert)):
            return False
        if self._table.version() > version and self._has(commit):
            return True
        # A merge that changes nothing makes no commit, and forgets the positions it was given.
        if _positions_of(self._table, {**self._ids, **_ids(commit)}) != self._positions:
            return False
        return _happens(lambda: self._append(commit))

    def _merge_rows(self, commit: Commit, upsert: Upsert) -> None:
        source = with_values(_merge_source(upsert), self._partitioning)
        same = " AND ".join(f'target."{name}" = source."{name}"' for name in upsert.key)
        updates = {
            f'"{name}"': f'source."{name}"' for name in source.column_names if name != _DELETED
        }
        merger = self._table.merge(
            source,
            predicate=same,
            source_alias="source",
            target_alias="target",
            commit_properties=self._properties(commit),
        )
        merger.when_matched_delete(predicate=f"source.{_DELETED} = true").when_matched_update(
            updates=updates, predicate=f"source.{_DELETED} = false"
        ).when_not_matched_insert(updates=updates, predicate=f"source.{_DELETED} = false").execute()

    def _has(self, commit: Commit) -> bool:
        return _positions_of(self._table, _ids(commit)) == dict(commit.positions)

    def _properties(self, commit: Commit) -> CommitProperties:
        return CommitProperties(
            custom_metadata={**commit.summary, COMMIT_KEY: commit.id},
            app_transactions=[
                # Any two commits exclude each other, also those that move no position.
                Transaction(COMMITS_APP, (self._table.transaction_version(COMMITS_APP) or 0) + 1),
                *(
                    Transaction(_app(name, each.id), each.next)
                    for name, each in commit.positions.items()
                    if self._positions.get(name) != each
                ),
            ],
        )


class BlankDeltaSnapshot(DeltaSnapshot):
    """A Delta table, all of which the next commit replaces."""

    def __init__(
        self,
        table: DeltaTable,
        topic: str,
        partitioning: Sequence[PartitionField],
        options: Mapping[str, str],
        clock: Clock,
        *,
        columns: pa.Schema,
        shape: str,
    ) -> None:
        super().__init__(table, topic, partitioning, options, clock)
        self._positions = {}
        self._columns = columns
        self._shape = shape

    @property
    @override
    def columns(self) -> pa.Schema:
        return self._columns

    @override
    def commit(self, commit: Commit) -> bool:
        # The properties of a table cannot change in the commit that replaces its rows: what they
        # will be is noted ahead, and holds from that commit on.
        following = {"build": commit.id, "ids": _ids(commit), "shape": self._shape or None}
        notes = {NEXT_PROPERTY: json.dumps(following)}
        if not _happens(
            lambda: self._table.alter.set_table_properties(notes, raise_if_not_exists=False)
        ):
            return False
        self._table = DeltaTable(self._table.table_uri, storage_options=self._options)
        if json.loads(self._table.metadata().configuration[NEXT_PROPERTY]) != following:
            return False
        return _happens(lambda: self._overwrite(commit))

    def _overwrite(self, commit: Commit) -> None:
        now_ms = self._clock.now_ms()
        actions: list[AddAction | RemoveAction] = [
            AddAction(each.path, each.bytes, each.partition, now_ms, True, each.stats)
            for each in commit.files
        ]
        properties = self._properties(commit)
        properties.app_transactions = [
            *(properties.app_transactions or []),
            Transaction(_build_app(commit.id), 1),
        ]
        self._table.create_write_transaction(
            actions,
            "overwrite",
            Schema.from_arrow(self._columns),
            partition_by=[each.name for each in self._partitioning],
            commit_properties=properties,
        )


def _happens(change: Callable[[], object]) -> bool:
    """Carry out a change of a table; False: somebody else was faster."""
    try:
        change()
    except CommitFailedError:
        return False
    except (DeltaError, OSError) as error:
        raise CommitOutcomeUnknown(f"the outcome of a commit is unknown: {error}") from error
    return True


def _app(name: str, topic_id: str) -> str:
    return f"danube:{name}:{topic_id}"


def _ids(commit: Commit) -> dict[str, str]:
    return {name: each.id for name, each in commit.positions.items()}


class _Facts(Struct, frozen=True):
    """What a table's properties say."""

    ids: dict[str, str]
    shape: str | None


def _facts_of(table: DeltaTable) -> _Facts:
    settings = table.metadata().configuration
    following = json.loads(settings.get(NEXT_PROPERTY) or "{}")
    if following and table.transaction_version(_build_app(following["build"])) is not None:
        return _Facts(following["ids"], following["shape"])
    return _Facts(json.loads(settings.get(IDS_PROPERTY, "{}")), settings.get(SHAPE_PROPERTY))


def _build_app(build: str) -> str:
    return f"danube:build:{build}"


def _with_partitions(columns: pa.Schema, partitioning: Sequence[PartitionField]) -> pa.Schema:
    for each in partitioning:
        column = partition_column(each, columns.field(each.column).type)
        if column.name not in columns.names:
            columns = columns.append(column)
    return columns


def _positions_of(table: DeltaTable, ids: Mapping[str, str]) -> dict[str, Position]:
    found = {}
    for name, topic_id in ids.items():
        version = table.transaction_version(_app(name, topic_id))
        if version is not None:
            found[name] = Position(topic_id, version)
    return found


def _merge_source(upsert: Upsert) -> pa.Table:
    rows = upsert.rows.append_column(_DELETED, pa.repeat(pa.scalar(False), len(upsert.rows)))
    if not len(upsert.deleted):
        return rows
    columns = [
        upsert.deleted.column(each.name)
        if each.name in upsert.key
        else pa.repeat(pa.scalar(each.name == _DELETED), len(upsert.deleted))
        if each.name == _DELETED
        else pa.nulls(len(upsert.deleted), each.type)
        for each in rows.schema
    ]
    return pa.concat_tables([rows, pa.table(columns, schema=rows.schema)])
