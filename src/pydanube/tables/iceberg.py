"""Iceberg tables, through pyiceberg.

Positions are the table property `danube.offsets`. It is set in one transaction with a snapshot,
even if that has no rows: only a snapshot brings the requirement that its parent is still the
current one, which is the compare-and-set. pyiceberg would repeat a lost commit on top of the
winner's rows, with positions that are wrong by then: the table's property
`commit.retry.num-retries` must be 0, and is looked at whenever the table is loaded.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import structs
from pyiceberg import expressions
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, Or
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import BucketTransform
from typing_extensions import override

from pydanube.errors import InvalidRequest, NotSupported
from pydanube.tables.bare_catalog import BareCatalog
from pydanube.tables.errors import (
    CommitOutcomeUnknown,
    TableGuardAltered,
    TableOfAnotherTopic,
    check_owner,
    check_shape,
)
from pydanube.tables.iceberg_files import (
    data_file_of,
    partition_record,
    partition_text,
    planned_partition_text,
    transform_of,
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
from pydanube.tables.partitioning import PartitionField, split, with_values
from pydanube.tables.state import Position, decode_positions, encode_positions

TOPIC_PROPERTY = "danube.topic"
SHAPE_PROPERTY = "danube.shape"
OFFSETS_PROPERTY = "danube.offsets"
COMMIT_PROPERTY = "danube.commit"
GUARDED = "commit.retry.num-retries"

# They take a column's name and a value, which their types do not say.
_at_least: Any = expressions.GreaterThanOrEqual
_below: Any = expressions.LessThan
_equal: Any = expressions.EqualTo
_one_of: Any = expressions.In

NAME_MAPPING = "schema.name-mapping.default"


class IcebergLakeTable(LakeTable):
    """An Iceberg table of a catalogue, for one topic; its name is `namespace.table`."""

    def __init__(
        self,
        catalog: Catalog,
        identifier: str,
        topic: str,
        *,
        partitioning: Sequence[PartitionField] = (),
        shape: str = "",
    ) -> None:
        if identifier.count(".") < 1:
            raise InvalidRequest(f"{identifier!r} is no table; write it as namespace.name")
        self._catalog = catalog
        self._identifier = identifier
        self._topic = topic
        self._partitioning = tuple(partitioning)
        self._shape = shape

    @property
    @override
    def name(self) -> str:
        return self._identifier

    @override
    def load(self) -> "IcebergSnapshot | None":
        table = self.open()
        if table is None:
            return None
        if self._owner_of(table) is None and not self._adopt(table):
            return self.load()
        self._check_guard(table)
        return IcebergSnapshot(table, self._partitioning)

    @override
    def check(self) -> None:
        if isinstance(self._catalog, BareCatalog):
            self._catalog.prove()
        table = self.open()
        if table is not None and self._owner_of(table) is not None:
            self._check_guard(table)

    def _owner_of(self, table: Table) -> str | None:
        """Return whose table it is; None: nobody's yet. Refuse if it must not be written to."""
        owner = table.properties.get(TOPIC_PROPERTY)
        if owner not in (None, self._topic):
            raise TableOfAnotherTopic(
                f"table {self._identifier} holds topic {owner}, not {self._topic}; name another"
            )
        check_shape(self._identifier, table.properties.get(SHAPE_PROPERTY), self._shape)
        return owner

    def _check_guard(self, table: Table) -> None:
        retries = table.properties.get(GUARDED)
        if retries != "0":
            raise TableGuardAltered(
                f"table {self._identifier} has {GUARDED} {retries or 'unset'}, so a commit that "
                "lost its race would be repeated with its rows twice. Set it to 0; nothing was "
                "written"
            )

    @override
    def create(self, columns: pa.Schema) -> None:
        marks = self._marks()
        create_table(self._catalog, self._identifier, columns, self._partitioning, marks)

    @override
    def blank(self, columns: pa.Schema) -> "BlankIcebergSnapshot | None":
        table = self.open()
        if table is None:
            return None
        check_owner(self._identifier, table.properties.get(TOPIC_PROPERTY), self._topic)
        return BlankIcebergSnapshot(table, self._partitioning, columns, self._marks())

    @override
    def holds(self, commit_id: str) -> bool:
        table = self.open()
        if table is None:
            return False
        if table.properties.get(COMMIT_PROPERTY) == commit_id:
            return True
        return any(
            each.summary is not None and each.summary.get(COMMIT_PROPERTY) == commit_id
            for each in table.snapshots()
        )

    def open(self) -> Table | None:
        """Return the table as pyiceberg knows it; None: there is none."""
        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None

    def _adopt(self, table: Table) -> bool:
        """Make it the topic's; False: somebody else has changed it meanwhile."""
        try:
            with table.transaction() as changing:
                changing.set_properties(self._marks())
        except CommitFailedException:
            return False
        return True

    def _marks(self) -> dict[str, str]:
        shape = {SHAPE_PROPERTY: self._shape} if self._shape else {}
        return {TOPIC_PROPERTY: self._topic, GUARDED: "0", **shape}


class IcebergSnapshot(LakeSnapshot):
    """An Iceberg table at one snapshot."""

    def __init__(self, table: Table, partitioning: Sequence[PartitionField]) -> None:
        self._table = table
        self._partitioning = partitioning
        self._positions = decode_positions(table.properties.get(OFFSETS_PROPERTY, "{}"))

    @property
    @override
    def positions(self) -> Mapping[str, Position]:
        return self._positions

    @property
    @override
    def columns(self) -> pa.Schema:
        return self._table.schema().as_arrow()

    @override
    def write(self, name: str, rows: pa.Table) -> list[DataFile]:
        files = []
        derived = [each.name for each in self._partitioning if each.transform != "identity"]
        parts = split(with_values(rows, self._partitioning), self._partitioning)
        for number, (_, part) in enumerate(parts):
            path = f"{self._table.location()}/data/{name}-{number}.parquet"
            written = self._write_file(path, part.drop_columns(derived))
            if self._is_hashed:
                written = structs.replace(written, stats=self._partition_text(part))
            files.append(written)
        return files

    @override
    def commit(self, commit: Commit) -> bool:
        summary = {**commit.summary, COMMIT_PROPERTY: commit.id}
        changing = self._table.transaction()
        if len(commit.added):
            with changing.update_schema() as columns:
                columns.union_by_name(commit.added)
        changing.set_properties(
            {OFFSETS_PROPERTY: encode_positions(commit.positions), COMMIT_PROPERTY: commit.id}
        )
        if commit.upsert is not None:
            self._replace(changing, commit.upsert, summary)
        elif commit.files:
            self._add(changing, commit.files, summary)
        else:
            changing.append(commit_schema(changing).empty_table(), snapshot_properties=summary)
        return happens(changing)

    @override
    def delete(self, files: Sequence[DataFile]) -> None:
        for each in files:
            try:
                self._table.io.delete(each.path)
            except FileNotFoundError:
                continue

    @override
    def remove(self, runs: Sequence[Run]) -> bool:
        changing = self._table.transaction()
        changing.delete(_any([_within(run) for run in runs]))
        return happens(changing)

    @override
    def scan(self, columns: Sequence[str], bounds: Mapping[str, tuple[int, int]]) -> pa.Table:
        wanted: BooleanExpression = AlwaysTrue()
        for name, (low, high) in bounds.items():
            within = And(_at_least(name, low), _below(name, high))
            wanted = And(wanted, within)
        return self._table.scan(row_filter=wanted, selected_fields=tuple(columns)).to_arrow()

    @override
    def files(self) -> list[StoredFile]:
        return [
            StoredFile(
                path=task.file.file_path,
                bytes=task.file.file_size_in_bytes,
                partition=f"{task.file.spec_id} {task.file.partition}",
                plain=not task.delete_files and task.file.spec_id == self._table.spec().spec_id,
            )
            for task in self._table.scan().plan_files()
        ]

    @override
    def join(self, name: str, paths: Sequence[str]) -> DataFile:
        wanted = set(paths)
        tasks = [each for each in self._table.scan().plan_files() if each.file.file_path in wanted]
        scan = ArrowScan(self._table.metadata, self._table.io, self._table.schema(), AlwaysTrue())
        rows = scan.to_table(tasks)
        rows = rows.sort_by(place_order(rows.column_names))
        # Files that are added by name must not carry ids of columns.
        plain = pa.schema([pa.field(each.name, each.type, each.nullable) for each in rows.schema])
        path = f"{self._table.location()}/data/{name}.parquet"
        return self._write_file(path, rows.cast(plain))

    @override
    def replace(self, joined: Sequence[Joined], summary: Mapping[str, str]) -> bool:
        there = {each.file.file_path: each.file for each in self._table.scan().plan_files()}
        changing = self._table.transaction()
        _map_names(changing)
        with changing.update_snapshot(snapshot_properties=dict(summary)).overwrite() as replacing:
            for each in joined:
                for path in each.paths:
                    replacing.delete_data_file(there[path])
                first = there[each.paths[0]]
                replacing.append_data_file(
                    data_file_of(self._table.io, self._table.metadata, each.file, first.partition)
                )
        return happens(changing)

    @override
    def plain_files(self) -> list[str] | None:
        names: dict[int, str] = {}
        for schema in self._table.schemas().values():
            for each in schema.fields:
                if names.setdefault(each.field_id, each.name) != each.name:
                    return None  # A column was renamed: old files have it under its old name.
        tasks = list(self._table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            return None
        return [task.file.file_path for task in tasks]

    @override
    def facts(self) -> TableFacts:
        files = [task.file for task in self._table.scan().plan_files()]
        current = self._table.current_snapshot()
        return TableFacts(
            version=str(current.snapshot_id if current else 0),
            files=len(files),
            bytes=sum(each.file_size_in_bytes for each in files),
            snapshots=len(self._table.snapshots()),
            last_commit_ms=current.timestamp_ms if current else None,
        )

    @property
    def _is_hashed(self) -> bool:
        """Whether partitions go by hashes, which a file's own statistics do not tell."""
        return any(
            isinstance(each.transform, BucketTransform) for each in self._table.spec().fields
        )

    def _partition_text(self, part: pa.Table) -> str:
        return partition_text(self._table.metadata, part)

    def _add(
        self, changing: Transaction, files: Sequence[DataFile], summary: dict[str, str]
    ) -> None:
        if not self._is_hashed:
            paths = [each.path for each in files]
            changing.add_files(paths, snapshot_properties=summary, check_duplicate_files=False)
            return
        metadata = changing.table_metadata
        if metadata.name_mapping() is None:
            changing.set_properties(
                {NAME_MAPPING: metadata.schema().name_mapping.model_dump_json()}
            )
        with changing.update_snapshot(snapshot_properties=summary).fast_append() as adding:
            for each in files:
                record = partition_record(each.stats)
                adding.append_data_file(data_file_of(self._table.io, metadata, each, record))

    def _write_file(self, path: str, rows: pa.Table) -> DataFile:
        output = self._table.io.new_output(path)
        with output.create() as out:
            pq.write_table(rows, out, compression="zstd", compression_level=1)
        return DataFile(path=path, rows=len(rows), bytes=len(output))

    def _replace(self, changing: Transaction, upsert: Upsert, summary: dict[str, str]) -> None:
        """Delete the rows of the keys, and append the new ones; a snapshot in any case."""
        keys = pa.concat_tables([upsert.rows.select(upsert.key), upsert.deleted])
        there = (
            self._table.scan(row_filter=any_of(keys), selected_fields=tuple(upsert.key)).to_arrow()
            if len(keys)
            else keys
        )
        if len(there):
            changing.delete(any_of(there), snapshot_properties=summary)
        changing.append(upsert.rows, snapshot_properties=summary)


class BlankIcebergSnapshot(IcebergSnapshot):
    """An Iceberg table, all of which the next commit replaces."""

    def __init__(
        self,
        table: Table,
        partitioning: Sequence[PartitionField],
        columns: pa.Schema,
        marks: Mapping[str, str],
    ) -> None:
        super().__init__(table, partitioning)
        self._positions = {}
        self._columns = columns
        self._marks = marks

    @property
    @override
    def columns(self) -> pa.Schema:
        return self._columns

    @property
    @override
    def _is_hashed(self) -> bool:
        return any(each.transform == "bucket" for each in self._partitioning)

    @override
    def _partition_text(self, part: pa.Table) -> str:
        return planned_partition_text(self._partitioning, part)

    @override
    def commit(self, commit: Commit) -> bool:
        summary = {**commit.summary, COMMIT_PROPERTY: commit.id}
        changing = self._table.transaction()
        if next(iter(self._table.scan().plan_files()), None) is not None:
            changing.delete(AlwaysTrue(), snapshot_properties=summary)
        _map_names(changing)
        self._change_partitions(changing)
        self._change_columns(changing)
        changing.set_properties(
            {
                **self._marks,
                OFFSETS_PROPERTY: encode_positions(commit.positions),
                COMMIT_PROPERTY: commit.id,
            }
        )
        if commit.files:
            self._add(changing, commit.files, summary)
        else:
            changing.append(commit_schema(changing).empty_table(), snapshot_properties=summary)
        return happens(changing)

    def _change_partitions(self, changing: Transaction) -> None:
        there = {each.name for each in self._table.spec().fields}
        wanted = {partition_name(each): each for each in self._partitioning}
        same = [
            str(each.transform) == str(transform_of(wanted[each.name]))
            for each in self._table.spec().fields
            if each.name in wanted
        ]
        if there == wanted.keys() and all(same):
            return
        with changing.update_spec() as spec:
            for name in there:
                spec.remove_field(name)
        with changing.update_spec() as spec:
            for name, each in wanted.items():
                spec.add_field(each.column, transform_of(each), name)

    def _change_columns(self, changing: Transaction) -> None:
        there = {each.name: same_shape(each.type) for each in self._table.schema().as_arrow()}
        wanted = {each.name: each.type for each in self._columns}
        with changing.update_schema(allow_incompatible_changes=True) as update:
            for name, kind in there.items():
                if name not in wanted or not same_shape(wanted[name]).equals(kind):
                    update.delete_column(name)
        with changing.update_schema() as update:
            update.union_by_name(self._columns)


def partition_name(field: PartitionField) -> str:
    """Return what a partition's field is called."""
    return f"{field.column}_part"


def create_table(
    catalog: Catalog,
    identifier: str,
    columns: pa.Schema,
    partitioning: Sequence[PartitionField],
    properties: Mapping[str, str],
) -> None:
    """Create a table and its namespace, unless somebody has done so."""
    with suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(identifier.rpartition(".")[0])
    try:
        with catalog.create_table_transaction(
            identifier, schema=columns, properties=dict(properties)
        ) as creating:
            if partitioning:
                with creating.update_spec() as spec:
                    for each in partitioning:
                        spec.add_field(each.column, transform_of(each), partition_name(each))
    except (TableAlreadyExistsError, CommitFailedException):
        return  # Somebody else was faster.


def _map_names(changing: Transaction) -> None:
    """Let files without ids of columns be read by name."""
    metadata = changing.table_metadata
    if metadata.name_mapping() is None:
        changing.set_properties({NAME_MAPPING: metadata.schema().name_mapping.model_dump_json()})


def commit_schema(changing: Transaction) -> pa.Schema:
    """Return the columns of a table as they are within a transaction."""
    schema: pa.Schema = changing.table_metadata.schema().as_arrow()
    return schema


def happens(changing: Transaction) -> bool:
    """Commit; False: the table has moved meanwhile. CommitOutcomeUnknown: nobody knows.

    NotSupported: its store cannot be relied on, and was asked for nothing.
    """
    try:
        changing.commit_transaction()
    except (CommitFailedException, ValidationException):
        return False
    except NotSupported:
        raise
    except Exception as error:
        # Catalogues fail in their own ways, and none of them says that nothing happened.
        raise CommitOutcomeUnknown(f"the outcome of a commit is unknown: {error}") from error
    return True


def any_of(keys: pa.Table) -> BooleanExpression:
    """Return the condition that a row has one of the keys."""
    if keys.num_columns == 1:
        found: BooleanExpression = _one_of(keys.column_names[0], set(keys.column(0).to_pylist()))
        return found
    return _any([_all(each) for each in keys.to_pylist()])


def _any(ways: list[BooleanExpression]) -> BooleanExpression:
    return ways[0] if len(ways) == 1 else Or(*ways)


def _within(run: Run) -> BooleanExpression:
    return And(
        _equal("partition", run.partition),
        _at_least("offset", run.first),
        _below("offset", run.last + 1),
    )


def _all(key: dict[str, Any]) -> BooleanExpression:
    conditions = [_equal(name, value) for name, value in key.items()]
    return And(*conditions)
