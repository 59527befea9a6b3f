"""Iceberg tables that are in no catalogue: the table's own directory says what it is.

Version n of a table is the file `metadata/v<n>.metadata.json`, named as Hadoop's tables name it, so
that other engines open the table by its path. A commit creates the file of the next version, which
one writer alone can do. `metadata/version-hint.text` names a version that is there, and perhaps not
the newest: it saves a search, and nothing rests on it.

Versions have no gaps. Old ones are removed from the lowest on, long after anybody builds on them;
whoever does so all the same sees that what it built on is gone.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

import pyarrow as pa
from pydantic import ValidationError as UnreadableModel
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io import FileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from typing_extensions import override

from pydanube.errors import Conflict, Corruption, DanubeError, InvalidRequest, Unavailable
from pydanube.runtime.blocking import BESIDE
from pydanube.runtime.randomness import Randomness, SystemRandomness
from pydanube.tables.numbered_files import NumberedFiles, check_files, open_files

VERSIONS_KEPT = 100
"""The newest versions, which are kept whatever their age."""

_HINT = "metadata/version-hint.text"
_HINT_DIGITS_MAX = 18
_VERSION = "metadata/v{}.metadata.json"
_VERSION_NAME = re.compile(r"v([1-9][0-9]{0,17})\.metadata\.json")
_NAME = re.compile(r"[^./\\][^/\\]*")


class BareCatalog(MetastoreCatalog, NoopCatalog):
    """The tables below a root: `namespace.name` is `root/namespace/name`.

    It does what exporters and sinks need; the rest it refuses, as pyiceberg's catalogue of nothing
    does. One thread at a time.
    """

    def __init__(
        self, name: str, files: NumberedFiles, randomness: Randomness, properties: Properties
    ) -> None:
        super().__init__(name, **{**properties, "warehouse": files.root})
        self._files = files
        self._randomness = randomness
        self._is_proven = False

    def prove(self) -> None:
        """See, once, that the store lets nobody replace a version; NotSupported: it does not."""
        if not self._is_proven:
            check_files(self._files, self._randomness)
            self._is_proven = True

    @override
    def load_table(self, identifier: str | Identifier) -> Table:
        place = _place(identifier)
        version = self._newest(place)
        if version is None:
            self._check_free(place)
            raise NoSuchTableError(f"there is no table {'.'.join(place)} below {self._files.root}")
        return self._table(place, version)

    @override
    def create_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        staged = self._create_staged_table(
            identifier, schema, location, partition_spec, sort_order, properties
        )
        place = _place(identifier)
        self._begin(place, staged.metadata)
        return self._table(place, 1)

    @override
    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        place = _place(table.name())
        version = self._newest(place)
        current = None if version is None else self._table(place, version)
        staged = self._update_and_stage_table(current, place, requirements, updates)
        if version is None or current is None:
            self._begin(place, staged.metadata)
            return _answer(staged.metadata, self._location(place, 1))
        if staged.metadata == current.metadata:
            return _answer(current.metadata, current.metadata_location)
        if not self._create(place, version + 1, staged.metadata):
            raise CommitFailedException(f"{'.'.join(place)} has a version {version + 1} by now")
        return _answer(staged.metadata, self._location(place, version + 1))

    @override
    def create_namespace(
        self, namespace: str | Identifier, properties: Properties = EMPTY_DICT
    ) -> None:
        raise NamespaceAlreadyExistsError("a namespace is a directory, and needs no creation")

    @override
    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        return {}

    @staticmethod
    @override
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """Keep them, whatever the table's properties say: they go by age alone (`vacuum`)."""

    def _begin(self, place: Identifier, metadata: TableMetadata) -> None:
        self._check_free(place)
        if not self._create(place, 1, metadata):
            raise TableAlreadyExistsError(f"there is a table {'.'.join(place)} by now")

    def _check_free(self, place: Identifier) -> None:
        """Refuse a directory that holds something else than an Iceberg table of this kind."""
        found = set(self._files.names(_path(place, "")))
        if "metadata" in found:
            inside = self._files.names(_path(place, "metadata/"))
            found.update(name for name in inside if not name.endswith(BESIDE))
        strange = found - {"metadata"}
        if not strange or self._newest(place) is not None:
            return
        where = f"{self._files.root}/{'/'.join(place)}"
        what = "is a Delta table" if "_delta_log" in strange else f"holds {min(strange)}"
        raise Conflict(
            f"{where} {what} and no Iceberg table without a catalogue; nothing was written. Name "
            "another table (--table), or another warehouse"
        )

    def _create(self, place: Identifier, version: int, metadata: TableMetadata) -> bool:
        """Create the file of a version; False: somebody else was faster."""
        self._check_location(place, metadata)
        self.prove()
        content = metadata.model_dump_json().encode()
        if not self._files.create(_path(place, _VERSION.format(version)), content):
            return False
        if version > 1 and not self._has(place, version - 1):
            raise Unavailable(
                f"{self._location(place, version - 1)}, which a commit was built on, was removed "
                "before the commit was made: it took days"
            )
        with suppress(DanubeError):  # Without it others search a little longer.
            self._files.replace(_path(place, _HINT), str(version).encode())
        return True

    def _newest(self, place: Identifier) -> int | None:
        """Return the last version there is: they have no gaps, so it is searched by halving."""
        low = self._known(place)
        if low is None:
            return None
        step = 1
        while self._has(place, low + step):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if self._has(place, middle):
                low = middle
            else:
                high = middle
        return low

    def _known(self, place: Identifier) -> int | None:
        """Return a version that is there: the hint's, or the last one that is listed."""
        hint = (self._files.read(_path(place, _HINT)) or b"").strip()
        if hint.isdigit() and len(hint) <= _HINT_DIGITS_MAX and self._has(place, int(hint)):
            return int(hint)
        return max(_versions(self._files.names(_path(place, "metadata/v"))), default=None)

    def _has(self, place: Identifier, version: int) -> bool:
        return self._files.has(_path(place, _VERSION.format(version)))

    def _table(self, place: Identifier, version: int) -> Table:
        location = self._location(place, version)
        content = self._files.read(_path(place, _VERSION.format(version)))
        if content is None:
            raise Unavailable(f"{location} was there a moment ago and is gone; try again")
        try:
            metadata = TableMetadataUtil.parse_raw(content.decode())
        except (UnreadableModel, ValidationError, UnicodeDecodeError) as error:
            raise Corruption(
                f"{location} is no metadata of a table: {str(error).splitlines()[0]}. Restore the "
                "file from a copy"
            ) from error
        self._check_location(place, metadata)
        return Table(
            identifier=place,
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )

    def _check_location(self, place: Identifier, metadata: TableMetadata) -> None:
        """Refuse a table that was moved, or is to lie elsewhere: its files go by whole paths."""
        where = f"{self._files.root}/{'/'.join(place)}"
        if _same_form(metadata.location) != _same_form(where):
            raise Conflict(
                f"the table at {where} says that it lies at {metadata.location}; nothing was "
                "written. Move it back, or give the catalogue the warehouse it was made in"
            )

    def _location(self, place: Identifier, version: int) -> str:
        return f"{self._files.root}/{_path(place, _VERSION.format(version))}"


def open_bare_catalog(name: str, properties: Mapping[str, str]) -> BareCatalog:
    """Return the tables below `warehouse`, a directory or a bucket; the rest is pyiceberg's."""
    if "warehouse" not in properties:
        raise InvalidRequest(
            f"catalogue {name} of type none has no warehouse: the directory or bucket of its "
            "tables, such as warehouse: /data/lake"
        )
    files = open_files(properties["warehouse"], properties)
    return BareCatalog(name, files, SystemRandomness(), dict(properties))


def outdated(names: Iterable[str]) -> list[str]:
    """Return the files of a table's versions that are not among the newest, the oldest first."""
    numbers = sorted(_versions(names))
    return [f"v{number}.metadata.json" for number in numbers[:-VERSIONS_KEPT]]


def _versions(names: Iterable[str]) -> list[int]:
    found = (_VERSION_NAME.fullmatch(name) for name in names)
    return [int(each[1]) for each in found if each is not None]


def _answer(metadata: TableMetadata, location: str) -> CommitTableResponse:
    return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": location})


def _place(identifier: str | Identifier) -> Identifier:
    found = BareCatalog.identifier_to_tuple(identifier)
    if len(found) != 2 or not all(_NAME.fullmatch(each) for each in found):
        raise InvalidRequest(
            f"{'.'.join(found)!r} is no table of a catalogue of type none; write it as "
            "namespace.name"
        )
    return found


def _path(place: Identifier, name: str) -> str:
    return f"{'/'.join(place)}/{name}"


def _same_form(location: str) -> str:
    """Return a place in one of the ways to write it."""
    scheme, separator, rest = location.rstrip("/").partition("://")
    if not separator:
        return location.rstrip("/").removeprefix("file:")
    return rest if scheme == "file" else f"{'s3' if scheme == 's3a' else scheme}://{rest}"
