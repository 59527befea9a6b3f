"""What a table was is forgotten after a while, and files that belong to nobody are removed.

A file belongs to nobody if no snapshot of the table has it and it is older than any commit that may
still be under way. It may have been left by an exporter that was killed, by a task that was done
twice, or by a commit whose answer was lost.
"""

from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Literal

from deltalake import DeltaTable
from msgspec import Struct
from pyarrow import fs as arrow_fs
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from pydanube.errors import Conflict, NotSupported
from pydanube.runtime.blocking import BESIDE
from pydanube.tables.bare_catalog import BareCatalog, outdated
from pydanube.tables.delta import DeltaLakeTable
from pydanube.tables.iceberg import IcebergLakeTable
from pydanube.tables.lake import LakeTable
from pydanube.tables.maintenance import Upkeep
from pydanube.tables.reference_layout import ReferenceLayoutTable

KEEP_DAYS = 7
KEEP_SNAPSHOTS = 100
ORPHAN_DAYS = 3
"""Longer than any commit takes."""

_OWN_FILES = (".parquet", ".avro")


class Keeping(Struct, frozen=True, kw_only=True):
    """What is kept: the newest snapshots, and those of the last days."""

    days: int = KEEP_DAYS
    snapshots: int = KEEP_SNAPSHOTS


def expire(
    table: LakeTable, now_ms: int, keeping: Keeping | None = None, *, dry_run: bool = False
) -> Upkeep:
    """Forget what the table was; what it is stays."""
    keeping = keeping or Keeping()
    match _stored(table):
        case DeltaLakeTable() as found:
            opened = _delta(found)
            files = len(opened.file_uris())
            gone = opened.vacuum(retention_hours=24 * keeping.days, dry_run=dry_run, full=False)
            if not dry_run:
                opened.cleanup_metadata()
            return _upkeep(table, "expired", files, len(gone), dry_run=dry_run)
        case IcebergLakeTable() as found:
            return _expire_iceberg(found, now_ms, keeping, dry_run=dry_run)
        case _:
            raise AssertionError(f"{table.name} is no table we keep")


def vacuum(table: LakeTable, now_ms: int, *, dry_run: bool = False) -> Upkeep:
    """Remove files that belong to nobody."""
    match _stored(table):
        case DeltaLakeTable() as found:
            opened = _delta(found)
            files = len(opened.file_uris())
            # Files of versions that are still kept count as orphans for deltalake, so it is told
            # to look no closer than those are kept.
            gone = opened.vacuum(retention_hours=24 * KEEP_DAYS, dry_run=dry_run, full=True)
            return _upkeep(table, "vacuumed", files, len(gone), dry_run=dry_run)
        case IcebergLakeTable() as found:
            before_ms = now_ms - ORPHAN_DAYS * 86_400_000
            return _vacuum_iceberg(found, before_ms, dry_run=dry_run)
        case _:
            raise AssertionError(f"{table.name} is no table we keep")


def _expire_iceberg(
    table: IcebergLakeTable, now_ms: int, keeping: Keeping, *, dry_run: bool
) -> Upkeep:
    opened = _iceberg(table)
    files = sum(1 for _ in opened.scan().plan_files())
    newest = sorted(opened.snapshots(), key=lambda each: each.timestamp_ms, reverse=True)
    before_ms = now_ms - keeping.days * 86_400_000
    named = {ref.snapshot_id for ref in opened.refs().values()}
    old = [
        each.snapshot_id
        for each in newest[keeping.snapshots :]
        if each.timestamp_ms < before_ms and each.snapshot_id not in named
    ]
    if old and not dry_run:
        try:
            opened.maintenance.expire_snapshots().by_ids(old).commit()
        except CommitFailedException as error:
            raise Conflict(
                f"table {table.name}: another commit came first; nothing was changed, run it again"
            ) from error
    return _upkeep(table, "expired", files, len(old), dry_run=dry_run)


def _vacuum_iceberg(table: IcebergLakeTable, before_ms: int, *, dry_run: bool) -> Upkeep:
    opened = _iceberg(table)
    live = {_path(each.file.file_path) for each in opened.scan().plan_files()}
    # What there is comes before what is in use: a file that a commit takes up between the two is
    # seen to be in use.
    filesystem, stored = _stored_files(opened)
    unseen = live - stored.keys()
    if unseen:
        raise Conflict(
            f"table {table.name}: {len(unseen)} of its files are not found below "
            f"{opened.location()}, such as {min(unseen)}; nothing was removed, since which files "
            "belong to nobody cannot be told"
        )
    opened = _iceberg(table)
    used = {_path(each) for each in _used_files(opened)}
    orphans = [
        path
        for path, written_ms in sorted(stored.items())
        if path.endswith(_OWN_FILES) and written_ms < before_ms and path not in used
    ]
    if isinstance(opened.catalog, BareCatalog):
        orphans += _outlived(opened, stored, before_ms)
    if not dry_run:
        for path in orphans:
            filesystem.delete_file(path)
    return _upkeep(table, "vacuumed", len(live), len(orphans), dry_run=dry_run)


def _outlived(table: Table, stored: Mapping[str, int], before_ms: int) -> list[str]:
    """Return old versions of a table without a catalogue, and files that were never put in place.

    Versions go from the lowest on, so that they have no gaps whenever this ends.
    """
    directory = f"{_path(table.location())}/metadata/"
    names = [path.removeprefix(directory) for path in stored if path.startswith(directory)]
    versions = [f"{directory}{name}" for name in outdated(names)]
    half = [f"{directory}{name}" for name in sorted(names) if name.endswith(BESIDE)]
    return [
        *takewhile(lambda path: stored[path] < before_ms, versions),
        *(path for path in half if stored[path] < before_ms),
    ]


def _stored_files(table: Table) -> tuple[arrow_fs.FileSystem, dict[str, int]]:
    """Return the files below a table's location, with the times they were written at."""
    if not isinstance(table.io, PyArrowFileIO):
        raise NotSupported(
            f"files of {table.name()} cannot be listed through {type(table.io).__name__}; set "
            "py-io-impl of its catalogue to pyiceberg.io.pyarrow.PyArrowFileIO"
        )
    scheme, netloc, path = PyArrowFileIO.parse_location(table.location())
    filesystem = table.io.fs_by_scheme(scheme, netloc)
    selector = arrow_fs.FileSelector(path, recursive=True, allow_not_found=True)
    found = {
        info.path: info.mtime_ns // 1_000_000
        for info in filesystem.get_file_info(selector)
        if info.type == arrow_fs.FileType.File and info.mtime_ns is not None
    }
    return filesystem, found


def _used_files(table: Table) -> Iterator[str]:
    """Yield the files of all snapshots of a table: data, manifests and lists of manifests."""
    seen: set[str] = set()
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file.file_path


def _path(location: str) -> str:
    """Return a location as its file system names it."""
    return PyArrowFileIO.parse_location(location)[2]


def _stored(table: LakeTable) -> LakeTable:
    return table.inner if isinstance(table, ReferenceLayoutTable) else table


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
    change: Literal["expired", "vacuumed"],
    files: int,
    removed: int,
    *,
    dry_run: bool,
) -> Upkeep:
    return Upkeep(
        table=table.name,
        change="nothing" if dry_run else change,
        files_before=files,
        files_after=files,
        removed=removed,
    )
