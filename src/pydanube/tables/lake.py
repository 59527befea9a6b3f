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


def place_order(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return how rows with such columns are sorted in joined files."""
    return [(name, "ascending") for name in ("partition", "offset") if name in names]


class DataFile(Struct, frozen=True, kw_only=True):
    """A file that was written and is in no commit yet."""

    path: str
    rows: int
    bytes: int
    partition: dict[str, str | None] = field(default_factory=dict)
    """The partition's values by column, where the table is partitioned by columns."""
    stats: str = ""
    """What the format keeps about the file, as it writes it."""


class Run(Struct, frozen=True):
    """All rows of a table from one offset to another, both included, of one partition."""

    partition: int
    first: int
    last: int


class StoredFile(Struct, frozen=True, kw_only=True):
    """A file of a table's current snapshot."""

    path: str
    bytes: int
    partition: str = ""
    """Equal for files of one partition of the table."""
    plain: bool = True
    """Whether its rows are the table's, all of them: none is deleted beside the file."""


class Joined(Struct, frozen=True, kw_only=True):
    """A file that holds the rows of others."""

    file: DataFile
    paths: list[str]
    """Those it takes the place of."""


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

    def remove(self, runs: Sequence[Run]) -> bool:
        """Delete the rows of runs; False: the table has moved, and nothing was done."""

    def scan(self, columns: Sequence[str], bounds: Mapping[str, tuple[int, int]]) -> pa.Table:
        """Return columns of all rows, or of those whose numbers are in [low, high) by column."""

    def files(self) -> list[StoredFile]:
        """Return the files of the table."""

    def join(self, name: str, paths: Sequence[str]) -> DataFile:
        """Write the rows of files of one partition to one, in the order of their places."""

    def replace(self, joined: Sequence[Joined], summary: Mapping[str, str]) -> bool:
        """Let joined files take the place of others, all of which the table has; positions stay.

        False: the table has moved, and nothing was done.
        """

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

    def check(self) -> None:
        """Refuse a table that `load` would refuse, and change nothing; a table of nobody will do.

        `load` makes such a one the topic's.
        """

    def create(self, columns: pa.Schema) -> None:
        """Create the table, unless somebody has done so."""

    def blank(self, columns: pa.Schema) -> LakeSnapshot | None:
        """Return the table as if it had these columns, no row and no position; None: there is none.

        A commit on top of that takes the place of everything the table has, columns included.
        NotSupported: it cannot, under the table's name. TableOfAnotherTopic: it is not the topic's.
        """

    def holds(self, commit_id: str) -> bool:
        """Tell whether a commit is in the table."""


Format = Literal["delta", "iceberg"]
