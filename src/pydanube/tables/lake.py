"""The port to tables: what the exporter asks of Delta, Iceberg and whatever comes later.

A table is loaded as a snapshot, and a commit is a compare-and-set against exactly that snapshot:
it adds rows together with the new positions, or nothing at all. Drivers know no topics and make no
decisions; whoever calls them blocks.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import pyarrow as pa
from msgspec import Struct, field

from pydanube.tables.state import Position


class DataFile(Struct, frozen=True, kw_only=True):
    """A file that was written and is in no commit yet."""

    path: str
    rows: int
    bytes: int
    partition: dict[str, str | None] = field(default_factory=dict)
    """The partition's values by column, where the table is partitioned by columns."""
    stats: str = ""
    """What the format keeps about the file, as it writes it."""


class Upsert(Struct, frozen=True, kw_only=True):
    """Rows that replace those of the same key, and keys whose rows go."""

    key: tuple[str, ...]
    rows: pa.Table
    """At most one per key."""
    deleted: pa.Table
    """The columns of the key alone; none of them is in `rows`."""


class Commit(Struct, frozen=True, kw_only=True):
    """What is to happen at once."""

    id: str
    """Found again in the table, by whoever lost the answer."""
    positions: Mapping[str, Position]
    """All of them, moved or not."""
    added: pa.Schema
    """Columns that the table gets, or that get more fields inside."""
    files: Sequence[DataFile] = ()
    upsert: Upsert | None = None
    summary: Mapping[str, str] = field(default_factory=dict)
    """For people."""


class TableFacts(Struct, frozen=True, kw_only=True):
    """What a table tells about itself."""

    version: str
    files: int
    bytes: int
    snapshots: int
    last_commit_ms: int | None


class LakeSnapshot(Protocol):
    """A table as it was loaded. Only its own commit tells whether it is still so."""

    @property
    def positions(self) -> Mapping[str, Position]:
        """How far the table is."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table."""

    def write(self, name: str, rows: pa.Table) -> list[DataFile]:
        """Write rows to files of that name, one per partition of the table."""

    def commit(self, commit: Commit) -> bool:
        """Commit; False: the table has moved meanwhile, and nothing was done.

        CommitOutcomeUnknown: nobody knows.
        """

    def delete(self, files: Sequence[DataFile]) -> None:
        """Delete files that are in no commit, as far as they are there."""

    def remove(self, places: pa.Table) -> bool:
        """Delete the rows at places, columns partition and offset; False: the table has moved."""

    def scan(self, columns: Sequence[str], bounds: Mapping[str, tuple[int, int]]) -> pa.Table:
        """Return columns of all rows, or of those whose numbers are in [low, high) by column."""

    def plain_files(self) -> list[str] | None:
        """Return the files whose rows, by column name, are the table; None: it takes more."""

    def facts(self) -> TableFacts:
        """Tell about the table."""


class LakeTable(Protocol):
    """A table by name; it may not exist yet."""

    @property
    def name(self) -> str:
        """What it is called, for people."""

    def load(self) -> LakeSnapshot | None:
        """Return the table as it is now; None: there is none.

        TableGuardAltered, TableOfAnotherTopic: it must not be written to.
        """

    def create(self, columns: pa.Schema) -> None:
        """Create the table, unless somebody has done so."""

    def holds(self, commit_id: str) -> bool:
        """Tell whether a commit is in the table."""


Format = Literal["delta", "iceberg"]
