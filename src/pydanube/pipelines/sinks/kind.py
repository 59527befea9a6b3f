"""What a kind of sink is asked. Pure: a kind loads what it writes with when it writes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from pydanube.pipelines.definitions import Sink
from pydanube.pipelines.lakes import BatchId, Lake
from pydanube.pipelines.places import Path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Written(Struct, frozen=True, kw_only=True):
    """What a sink says about a batch."""

    rows: int
    version: int | None = None
    counts: Literal["version", "snapshot"] = "version"


class Promise(Struct, frozen=True):
    """What a flow into a sink guarantees, and why."""

    words: Literal["exactly once", "at least once"]
    reason: str


class SinkKind(ABC):
    """One kind of sink. It has no state: every question comes with the sink's definition.

    A batch that is repeated after a crash has the same number, the same query and, where
    `needs_same_rows` says so, the same rows. `write` must make the repeat harmless, or `promise`
    must not say "exactly once".
    """

    shares_path = True
    """Whether several flows may write to one path."""
    is_table = False
    """Whether it is a table that says which batch it has, so that a flow can go on from it."""

    @abstractmethod
    def problems(self, sink: Sink) -> Iterator[tuple[Path, str]]:
        """Yield what is wrong in a definition: the key below the sink, and words."""

    @abstractmethod
    def promise(self, sink: Sink, unversioned: Sequence[str]) -> Promise:
        """Tell what a flow guarantees; `unversioned` tables are looked up on its way."""

    @abstractmethod
    def write(
        self,
        sink: Sink,
        frame: "DataFrame",
        batch: BatchId,
        danube: Mapping[str, str],
        *,
        ordered: bool,
    ) -> Written:
        """Write a batch. `ordered` tells that tasks see their rows in a stable order."""

    def needs_same_rows(self, sink: Sink) -> bool:
        """Tell whether a repeated batch must bring the same rows."""
        return False

    def check_columns(  # noqa: B027  Most kinds take all columns.
        self, sink: Sink, columns: Sequence[tuple[str, str]], danube: Mapping[str, str]
    ) -> None:
        """Refuse columns, by name and Spark's type, that it cannot take: InvalidRequest."""

    def table(self, sink: Sink) -> Lake | None:
        """Return the table that it writes to; None if it is none with commits."""
        return None

    def beside(self, sink: Sink, place: str) -> Lake | None:
        """Return another table of the sink's kind: at a path, or by name in the same catalogue.

        None: it is no table, so what goes beside it is a Delta table.
        """
        return None

    def replay(
        self, sink: Sink, frame: "DataFrame", job: str, into: str, danube: Mapping[str, str]
    ) -> int | None:
        """Write a replay beside the live sink; None: `into` names a table, see `beside`."""
        return None

    def declared(self, sink: Sink, danube: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return the options of Spark's own writer of this format; None: Spark has none."""
        return None
