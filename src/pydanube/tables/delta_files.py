"""Files of Delta tables: how they are written, and what a commit says about them."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs as arrow_fs

from pydanube.tables.lake import DataFile
from pydanube.tables.partitioning import PartitionField, split, with_values

_ICEBERG_FILES = ("metadata/version-hint.text", "metadata/v1.metadata.json")
_STATED = ("offset", "partition", "publish_time")


class DeltaFiles:
    """The place of a Delta table, which need not exist yet."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self._uri = uri
        self._options = dict(options)

    def write(
        self, name: str, rows: pa.Table, partitioning: Sequence[PartitionField]
    ) -> list[DataFile]:
        """Write rows to files of that name, one per partition."""
        files = []
        parts = split(with_values(rows, partitioning), partitioning)
        for number, (values, part) in enumerate(parts):
            inside = part.drop_columns(list(values)) if values else part
            files.append(self.write_file(f"{name}-{number}.parquet", inside, values))
        return files

    def write_file(self, path: str, inside: pa.Table, values: Mapping[str, object]) -> DataFile:
        """Write one file, all of one partition; the partition's columns are not inside."""
        filesystem = self.filesystem()
        with filesystem.open_output_stream(path) as out:
            pq.write_table(inside, out, compression="zstd", compression_level=1)
        return DataFile(
            path=path,
            rows=len(inside),
            bytes=filesystem.get_file_info(path).size,
            partition={key: partition_text(value) for key, value in values.items()},
            stats=_stats(inside),
        )

    def delete(self, files: Sequence[DataFile]) -> None:
        """Delete files, as far as they are there."""
        filesystem = self.filesystem()
        for each in files:
            try:
                filesystem.delete_file(each.path)
            except FileNotFoundError:
                continue

    def is_iceberg(self) -> bool:
        """Tell whether an Iceberg table that is in no catalogue lies at the place."""
        try:
            found = self.filesystem().get_file_info(list(_ICEBERG_FILES))
        except TableNotFoundError:
            return False  # There is no such directory yet.
        return any(each.type == arrow_fs.FileType.File for each in found)

    def filesystem(self) -> Any:  # noqa: ANN401  pyarrow has no types.
        """Return the table's directory as pyarrow knows it."""
        return arrow_fs.PyFileSystem(DeltaStorageHandler(self._uri, self._options))


def partition_text(value: object) -> str | None:
    """Return a partition's value as a commit names it."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC)
            return moment.strftime("%Y-%m-%d %H:%M:%S.%f")
        case _:
            return str(value)


def _stats(rows: pa.Table) -> str:
    lowest: dict[str, object] = {}
    highest: dict[str, object] = {}
    for name in _STATED:
        if name in rows.column_names and len(rows):
            found = pc.min_max(rows.column(name)).as_py()
            lowest[name], highest[name] = _stat(found["min"]), _stat(found["max"])
    nulls = {name: rows.column(name).null_count for name in lowest}
    return json.dumps(
        {"numRecords": len(rows), "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    )


def _stat(value: object) -> object:
    if isinstance(value, datetime):
        # Publish times are whole milliseconds, so nothing is cut off.
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
