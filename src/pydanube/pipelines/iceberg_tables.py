"""Iceberg tables as sinks of pipelines, through pyiceberg: each batch in one transaction.

The table's property `danube.flow.<pipeline>/<sink>` says which batch of which query the table
holds, and the offsets reached; it is set in one transaction with a snapshot, whose requirement on
its parent makes the commit a compare-and-set. pyiceberg would repeat a lost commit with a stale
property: `commit.retry.num-retries` must be 0, and lost commits are looked at and repeated here.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import load_file_io
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadataUtil
from typing_extensions import override

from pydanube.errors import Conflict, Corruption
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
from pydanube.runtime.randomness import SystemRandomness
from pydanube.tables.catalogs import open_catalog
from pydanube.tables.columns import Columns, single_arrays
from pydanube.tables.errors import CommitOutcomeUnknown, TableGuardAltered
from pydanube.tables.iceberg import (
    GUARDED,
    IcebergSnapshot,
    any_of,
    commit_schema,
    create_table,
    happens,
)
from pydanube.tables.lake import DataFile
from pydanube.tables.lake_types import same_shape
from pydanube.tables.partitioning import (
    PartitionField,
    check_partitioning,
    read_partitioning,
)

FLOW_PROPERTY = "danube.flow."
CATALOG_NAME = "danube"
ATTEMPTS_MAX = 20
"""Commits that lost to another writer of the table, one after the other."""
KEYS_AT_ONCE_MAX = 10_000
"""Keys that one condition names."""


class IcebergLake(FileLake):
    """A table of a catalogue; its name is `namespace.table`."""

    def __init__(self, catalog: Mapping[str, str], identifier: str) -> None:
        properties = dict(catalog)
        self._catalog_name = properties.pop("name", CATALOG_NAME)
        self._properties = properties
        self._identifier = identifier
        self._opened: Catalog | None = None

    @property
    @override
    def name(self) -> str:
        return self._identifier

    @property
    @override
    def counts(self) -> Literal["version", "snapshot"]:
        return "snapshot"

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
        rows = nullable(keyed(rows, key, self.name) if mode == "upsert" else rows)
        for _ in range(ATTEMPTS_MAX):
            table = self._open()
            if table is None:
                self._create(rows.schema, partition_by)
                continue
            stands = self._stands(table, batch.flow)
            if stands is not None and stands.includes(batch):
                return _state(table)
            _check_guard(table, self._identifier)
            self._attempt(table, rows, batch, mode, key)
        raise self._outrun()

    @override
    def part_writer(
        self, columns: pa.Schema, partition_by: Sequence[str] = ()
    ) -> "IcebergPartWriter":
        table = self._open()
        if table is None:
            self._create(columns, partition_by)
            table = self._open()
        assert table is not None, "it was created just now"
        return IcebergPartWriter(table.metadata.model_dump_json(), dict(table.io.properties))

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
        for _ in range(ATTEMPTS_MAX):
            table = self._open()
            assert table is not None, "whoever wrote the files had it made"
            stands = self._stands(table, batch.flow)
            if stands is not None and stands.includes(batch):
                self._tidy(table, files)
                return _state(table)
            _check_guard(table, self._identifier)
            self._attempt(table, columns.empty_table(), batch, mode, (), files)
        raise self._outrun()

    def _outrun(self) -> Conflict:
        return Conflict(
            f"other writers changed {self._identifier} {ATTEMPTS_MAX} times while this "
            "one wrote a batch; let one writer at a time use it"
        )

    def _tidy(self, table: Table, files: Sequence[DataFile]) -> None:
        """Delete files that the table does not name: an earlier attempt may have happened."""
        named = {each.file.file_path for each in table.scan().plan_files()}
        IcebergSnapshot(table, ()).delete([each for each in files if each.path not in named])

    @override
    def parts(self) -> list[StoredPart]:
        table = self._open()
        if table is None:
            return []
        files = IcebergSnapshot(table, ()).plain_files()
        if files is None:
            raise Conflict(f"{self.name} has deleted rows or renamed columns; its files do not")
        schema = table.schema().as_arrow().serialize().to_pybytes()
        properties = dict(table.io.properties)
        return [IcebergPart(each, properties, schema) for each in files]

    @override
    def last_batch(self, flow: str) -> LastBatch | None:
        table = self._open()
        return None if table is None else self._stands(table, flow)

    @override
    def columns(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else _plain(table.schema().as_arrow())

    @override
    def rows(self) -> pa.Table | None:
        table = self._open()
        return None if table is None else table.scan().to_arrow()

    def _attempt(
        self,
        table: Table,
        rows: pa.Table,
        batch: BatchId,
        mode: WriteMode,
        key: Sequence[str],
        written: Sequence[DataFile] = (),
    ) -> None:
        """Try one commit, of rows or of files. Whether it happened, the table tells."""
        snapshot = IcebergSnapshot(table, _partitioning(table))
        name = f"{batch.query}-{batch.number}-{SystemRandomness().below(2**64):016x}"
        files = list(written)
        try:
            changing = table.transaction()
            with changing.update_schema() as columns:
                columns.union_by_name(rows.schema)
            changing.set_properties({f"{FLOW_PROPERTY}{batch.flow}": _note(batch)})
            _remove(table, changing, rows, mode, key)
            if len(rows):
                files = snapshot.write(name, rows)
            _add(changing, files, _summary(batch))
        except (ValidationError, ValueError, TypeError) as error:
            snapshot.delete(files)
            raise FlowRefused(
                f"the rows do not fit the table {self._identifier}: {error}. Change the step that "
                "makes the column, or give the sink another table"
            ) from error
        try:
            if not happens(changing) and not written:
                snapshot.delete(files)
        except CommitOutcomeUnknown:
            return  # The files stay: the commit may have happened, or happen yet.

    def _stands(self, table: Table, flow: str) -> LastBatch | None:
        found = table.properties.get(f"{FLOW_PROPERTY}{flow}")
        if found is None:
            return None
        try:
            return msgspec.json.decode(found, type=LastBatch)
        except msgspec.MsgspecError as error:
            raise Corruption(
                f"property {FLOW_PROPERTY}{flow} of {self._identifier} is not what was written "
                f"there: {error}. Restore it, or begin with an empty table"
            ) from None

    def _create(self, columns: pa.Schema, partition_by: Sequence[str]) -> None:
        fields = read_partitioning(",".join(partition_by))
        check_partitioning(fields, columns)
        create_table(self._catalog(), self._identifier, columns, fields, {GUARDED: "0"})

    def _open(self) -> Table | None:
        try:
            table = self._catalog().load_table(self._identifier)
        except NoSuchTableError:
            return None
        if GUARDED not in table.properties:
            with table.transaction() as changing:  # One that somebody else made.
                changing.set_properties({GUARDED: "0"})
        return table

    def _catalog(self) -> Catalog:
        if self._opened is None:
            self._opened = open_catalog(self._catalog_name, self._properties)
        return self._opened


class IcebergPartWriter(PartWriter):
    """Writes files of an Iceberg table; it needs the table's store and not its catalogue."""

    def __init__(self, metadata: str, properties: Mapping[str, str]) -> None:
        self._metadata = metadata
        self._properties = dict(properties)

    @override
    def write(self, name: str, rows: pa.Table) -> list[DataFile]:
        return self._snapshot().write(name, rows)

    @override
    def delete(self, files: Sequence[DataFile]) -> None:
        self._snapshot().delete(files)

    def _snapshot(self) -> IcebergSnapshot:
        metadata = TableMetadataUtil.parse_raw(self._metadata)
        table = Table(
            ("danube", "parts"),
            metadata,
            "",
            load_file_io(self._properties, metadata.location),
            NoopCatalog("danube"),
        )
        return IcebergSnapshot(table, _partitioning(table))


class IcebergPart(StoredPart):
    """A file of an Iceberg table, whose columns go by name."""

    def __init__(self, path: str, properties: Mapping[str, str], schema: bytes) -> None:
        self._path = path
        self._properties = dict(properties)
        self._schema = schema

    @override
    def read(self) -> pa.Table:
        columns = Columns(pa.ipc.read_schema(pa.py_buffer(self._schema)))
        io = load_file_io(self._properties, self._path)
        with io.new_input(self._path).open() as file:
            rows = pq.read_table(file)
        return columns.arranged(single_arrays(rows.cast(_plain(rows.schema))), len(rows))


def _plain(schema: pa.Schema) -> pa.Schema:
    # Without the ids of columns, which files that are added by name must not carry.
    return pa.schema([(each.name, same_shape(each.type)) for each in schema])


def _check_guard(table: Table, identifier: str) -> None:
    if table.properties.get(GUARDED) != "0":
        raise TableGuardAltered(
            f"table {identifier} has {GUARDED} {table.properties.get(GUARDED)}, so a commit that "
            "lost its race would be repeated with its rows twice. Set it to 0; nothing was written"
        )


def _remove(
    table: Table, changing: Transaction, rows: pa.Table, mode: WriteMode, key: Sequence[str]
) -> None:
    """Take out what the batch replaces, as far as it is there."""
    match mode:
        case "append":
            pass
        case "complete":
            if any(True for _ in table.scan().plan_files()):
                changing.delete(AlwaysTrue())
        case "upsert":
            keys = rows.select(list(key))
            for first in range(0, len(keys), KEYS_AT_ONCE_MAX):
                wanted = any_of(keys.slice(first, KEYS_AT_ONCE_MAX))
                there = table.scan(row_filter=wanted, selected_fields=tuple(key)).to_arrow()
                if len(there):
                    changing.delete(any_of(there))


def _add(changing: Transaction, files: Sequence[DataFile], summary: dict[str, str]) -> None:
    """Add files, in a snapshot that is made in any case: it is what makes commits compare."""
    if files:
        paths = [each.path for each in files]
        changing.add_files(paths, snapshot_properties=summary, check_duplicate_files=False)
    else:
        changing.append(commit_schema(changing).empty_table(), snapshot_properties=summary)


def _partitioning(table: Table) -> list[PartitionField]:
    """Return how a table is cut; FlowRefused if it is in ways that are not known here."""
    schema = table.schema()
    names = [
        (str(each.transform), schema.find_column_name(each.source_id))
        for each in table.spec().fields
    ]
    texts = [f"{transform}({column})" for transform, column in names]
    return list(read_partitioning(",".join(texts)))


def _note(batch: BatchId) -> str:
    offsets = {source: dict(reached) for source, reached in batch.offsets.items()}
    last = LastBatch(query=batch.query, number=batch.number, offsets=offsets)
    return msgspec.json.encode(last).decode()


def _summary(batch: BatchId) -> dict[str, str]:
    return {
        FLOW_KEY: batch.flow,
        QUERY_KEY: batch.query,
        BATCH_KEY: str(batch.number),
        OFFSETS_KEY: msgspec.json.encode(batch.offsets).decode(),
    }


def _state(table: Table) -> int:
    current = table.current_snapshot()
    return current.snapshot_id if current is not None else 0
