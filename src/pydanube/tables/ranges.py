"""A range of messages on its way into files of a table: read, decoded, written, set aside.

Nothing here commits. The same code runs in the exporter's own process and in Spark's executors.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import Randomness
from pydanube.spark.source.planning import TopicState
from pydanube.spark.source.rows import Place
from pydanube.tables.columns import DEAD_LETTERS, Columns, single_arrays
from pydanube.tables.errors import BadMessage
from pydanube.tables.export_rules import ExportRules
from pydanube.tables.lake import DataFile, LakeSnapshot, LakeTable
from pydanube.tables.messages import Schemas, raw_rows, sort_messages, stamped
from pydanube.tables.state import Span
from pydanube.tables.upserts import UpsertRows

FILE_BYTES = 32 * 1024 * 1024


class TopicSource(Protocol):
    """Where messages come from."""

    @property
    def topic(self) -> str:
        """The base name."""

    def states(self) -> Mapping[str, TopicState]:
        """Return what there is now, by physical topic."""

    def read(self, name: str, span: Span) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read a span, all of it, in order; each batch with the offset of its first row."""


class TableSchemas(Schemas, Protocol):
    """The schemas of a topic's messages."""

    def refresh(self) -> None:
        """Look anew what messages without a schema of their own are decoded by."""

    def columns(self) -> pa.Schema:
        """Return the columns of a new table."""


class TableTools(Struct, frozen=True, kw_only=True):
    """What it takes to bring messages into files."""

    source: TopicSource
    main: LakeTable
    dead: LakeTable
    schemas: TableSchemas
    clock: Clock
    randomness: Randomness


class RangeWriter:
    """Writes the rows of spans to files of a table; `columns` grows by what messages bring.

    `again`: messages that are among the dead letters are decoded like all others.
    """

    def __init__(
        self,
        tools: TableTools,
        rules: ExportRules,
        snapshot: LakeSnapshot,
        spans: Mapping[str, Span],
        columns: Columns,
        name: str,
        *,
        again: bool = False,
    ) -> None:
        self._tools = tools
        self._again = again
        self._rules = rules
        self._snapshot = snapshot
        self._spans = spans
        self._columns = columns
        self._name = name
        self.dead_snapshot: LakeSnapshot | None = None
        """The dead letters there were before."""
        self.upsert = UpsertRows(rules.upsert_key) if rules.upsert_key else None
        """Of a table with a key: its rows, which are in no file."""
        self.files: list[DataFile] = []
        self.rows = self.bytes = self.skipped = 0

    def write(self) -> pa.Table:
        """Write the rows of the range to files; return its dead letters that are not kept yet."""
        waiting: list[pa.Table] = []
        dead: list[pa.Table] = []
        for raw in self._messages():
            found = sort_messages(
                raw, self._columns, self._tools.schemas, empty_deletes=self.upsert is not None
            )
            letters, rows = found.dead, found.rows
            if self.upsert is not None:
                letters = pa.concat_tables([letters, self.upsert.add(raw, found)]).sort_by("offset")
            else:
                waiting.append(rows)
            if len(letters):
                dead.append(self._bad(letters))
            if sum(each.nbytes for each in waiting) >= FILE_BYTES:
                self._write_file(waiting)
                waiting = []
        if any(len(each) for each in waiting):
            self._write_file(waiting)
        return pa.concat_tables(dead) if dead else DEAD_LETTERS.empty_table()

    def _messages(self) -> Iterator[pa.Table]:
        """Yield the messages of the range that are not among the dead letters already."""
        known = self._known_dead_letters()
        for name, span in self._spans.items():
            place = Place.of(name)
            due = span.start
            for first, batch in self._tools.source.read(name, span):
                assert first == due, f"{name}: offset {first} came where {due} was due"
                due = first + batch.num_rows
                raw = raw_rows(batch, first, place)
                self.bytes += raw.nbytes
                if name in known:
                    raw = raw.filter(pc.invert(pc.is_in(raw.column("offset"), known[name])))
                if len(raw):
                    yield raw
            assert due == span.end, f"{name}: read up to {due}, wanted {span.end}"

    def _known_dead_letters(self) -> dict[str, pa.Array]:
        """Return offsets of the range that an earlier try has set aside, by physical topic."""
        if self._again or self._rules.on_bad_message != "dlq":
            return {}
        self.dead_snapshot = snapshot = self._tools.dead.load()
        if snapshot is None:
            return {}
        known = {}
        for name, span in self._spans.items():
            position = snapshot.positions.get(name)
            if position is not None and position.id == span.id and position.next > span.start:
                place = Place.of(name)
                bounds = {
                    "offset": (span.start, span.end),
                    "partition": (place.partition, place.partition + 1),
                }
                known[name] = snapshot.scan(["offset"], bounds).column("offset").combine_chunks()
        return known

    def _bad(self, letters: pa.Table) -> pa.Table:
        match self._rules.on_bad_message:
            case "dlq":
                return stamped(letters, self._tools.clock.now_ms())
            case "skip":
                self.skipped += len(letters)
                return DEAD_LETTERS.empty_table()
            case "fail":
                first = letters.slice(0, 1).to_pylist()[0]
                raise BadMessage(
                    f"{first['topic']}, partition {first['partition']}, offset {first['offset']} "
                    f"does not fit table {self._tools.main.name}: {first['reason']}. Mend the "
                    "schema, or set the table to dlq or skip (danube table enable --on-error)"
                )

    def _write_file(self, rows: list[pa.Table]) -> None:
        whole = pa.concat_tables(
            [self._columns.arranged(single_arrays(each), len(each)) for each in rows]
        )
        self.files += self._snapshot.write(f"{self._name}-{len(self.files)}", whole)
        self.rows += len(whole)
