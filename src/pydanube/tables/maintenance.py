"""Upkeep of tables: small files joined, old snapshots forgotten, files of nobody removed.

Each change is one commit on top of the table that was loaded, and leaves the positions alone. When
an exporter was faster nothing has happened; run it again.
"""

from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from msgspec import Struct
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import FileScanTask, Table

from pydanube.errors import Conflict
from pydanube.runtime.randomness import Randomness
from pydanube.tables.delta import DeltaLakeTable
from pydanube.tables.iceberg import IcebergLakeTable
from pydanube.tables.lake import LakeTable

TARGET_BYTES = 128 * 1024 * 1024
FILES_MIN = 2
KEEP_DAYS = 7

_CUT_IN = "a commit came between; nothing was changed, run it again"


class Upkeep(Struct, frozen=True, kw_only=True):
    """What was done."""

    table: str
    change: Literal["compacted", "expired", "nothing"]
    files_before: int
    files_after: int
    removed: int = 0
    """Snapshots, or files."""


def compact(table: LakeTable, randomness: Randomness, *, dry_run: bool = False) -> Upkeep:
    """Join small files, in the order of partition and offset."""
    match table:
        case DeltaLakeTable():
            return _compact_delta(table, dry_run=dry_run)
        case IcebergLakeTable():
            return _compact_iceberg(table, randomness, dry_run=dry_run)
        case _:
            raise AssertionError(f"{table.name} is no table we keep")


def expire(table: LakeTable, now_ms: int, *, keep_days: int = KEEP_DAYS) -> Upkeep:
    """Forget what the table was, but for so many days; what it is stays."""
    match table:
        case DeltaLakeTable():
            opened = _delta(table)
            files = len(opened.file_uris())
            removed = opened.vacuum(retention_hours=24 * keep_days, dry_run=False)
            opened.cleanup_metadata()
            return _upkeep(table, "expired", files, files, len(removed))
        case IcebergLakeTable():
            return _expire_iceberg(table, now_ms - keep_days * 86_400_000)
        case _:
            raise AssertionError(f"{table.name} is no table we keep")


def _compact_delta(table: DeltaLakeTable, *, dry_run: bool) -> Upkeep:
    opened = _delta(table)
    before = len(opened.file_uris())
    if dry_run:
        return _upkeep(table, "nothing", before, before)
    try:
        opened.optimize.compact(target_size=TARGET_BYTES)
    except CommitFailedError as error:
        raise Conflict(f"table {table.name}: {_CUT_IN}") from error
    after = len(opened.file_uris())
    return _upkeep(table, "compacted" if after != before else "nothing", before, after)


def _compact_iceberg(table: IcebergLakeTable, randomness: Randomness, *, dry_run: bool) -> Upkeep:
    opened = _iceberg(table)
    tasks = list(opened.scan().plan_files())
    small = [
        task
        for task in tasks
        if task.file.file_size_in_bytes < TARGET_BYTES // 2 and not task.delete_files
    ]
    groups = [group for group in _groups(small) if len(group) >= FILES_MIN]
    after = len(tasks) - sum(len(group) - 1 for group in groups)
    if not groups or dry_run:
        return _upkeep(table, "nothing", len(tasks), after)
    changing = opened.transaction()
    written: list[str] = []
    with changing.update_snapshot(
        snapshot_properties={"danube.upkeep": "compacted"}
    ).overwrite() as replacing:
        for group in groups:
            path = f"{opened.location()}/data/{randomness.below(2**128):032x}-joined.parquet"
            _write_joined(opened, group, path)
            written.append(path)
            for task in group:
                replacing.delete_data_file(task.file)
            replacing.append_data_file(parquet_file_to_data_file(opened.io, opened.metadata, path))
    try:
        changing.commit_transaction()
    except (CommitFailedException, ValidationException) as error:
        for path in written:
            opened.io.delete(path)
        raise Conflict(f"table {table.name}: {_CUT_IN}") from error
    return _upkeep(table, "compacted", len(tasks), after)


def _groups(tasks: list[FileScanTask]) -> list[list[FileScanTask]]:
    """Put files of one partition together until they are large enough."""
    by_partition: dict[str, list[FileScanTask]] = {}
    for task in tasks:
        by_partition.setdefault(str(task.file.partition), []).append(task)
    groups: list[list[FileScanTask]] = []
    for members in by_partition.values():
        size = 0
        groups.append([])
        for task in members:
            if size + task.file.file_size_in_bytes > TARGET_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(task)
            size += task.file.file_size_in_bytes
    return groups


def _write_joined(table: Table, group: list[FileScanTask], path: str) -> None:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    rows: pa.Table = scan.to_table(group)
    rows = rows.sort_by([("partition", "ascending"), ("offset", "ascending")])
    # Files that are added by name must not carry ids of columns.
    plain = pa.schema([pa.field(each.name, each.type, each.nullable) for each in rows.schema])
    with table.io.new_output(path).create() as out:
        pq.write_table(rows.cast(plain), out, compression="zstd", compression_level=1)


def _expire_iceberg(table: IcebergLakeTable, before_ms: int) -> Upkeep:
    from datetime import UTC, datetime

    opened = _iceberg(table)
    files = len(list(opened.scan().plan_files()))
    snapshots = len(opened.snapshots())
    # pyiceberg takes times of its own zone, without one.
    before = datetime.fromtimestamp(before_ms / 1000, UTC).astimezone().replace(tzinfo=None)
    opened.maintenance.expire_snapshots().older_than(before).commit()
    left = len(_iceberg(table).snapshots())
    return _upkeep(table, "expired", files, files, snapshots - left)


def _delta(table: DeltaLakeTable) -> DeltaTable:
    opened = table.open()
    if opened is None:
        raise Conflict(f"there is no table {table.name} yet")
    return opened


def _iceberg(table: IcebergLakeTable) -> Table:
    opened = table.open()
    if opened is None:
        raise Conflict(f"there is no table {table.name} yet")
    return opened


def _upkeep(
    table: LakeTable,
    change: Literal["compacted", "expired", "nothing"],
    before: int,
    after: int,
    removed: int = 0,
) -> Upkeep:
    return Upkeep(
        table=table.name, change=change, files_before=before, files_after=after, removed=removed
    )
