"""The loop that brings a topic into its table, each message once: the table is the checkpoint.

    load the table, its positions say what it lacks
    write dead letters of the next range, and commit them
    write the rows, and commit them together with the new positions
    lost the race: delete own files, begin again
    outcome unknown: look for the own commit; without it, begin again

Each commit is a compare-and-set against the table that was loaded, so any number of exporters may
run, and any of them may be killed anywhere. A message is in the table or among the dead letters,
never in both and never in neither: the dead letters have positions of their own, are committed
first, and what is among them is left out of the table.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.errors import Unavailable
from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import Randomness
from pydanube.spark.source.planning import Limits, TopicState
from pydanube.spark.source.rows import Place
from pydanube.tables.columns import DEAD_LETTERS, ENVELOPE, Columns
from pydanube.tables.errors import BadMessage, CommitOutcomeUnknown, TableOfAnotherTopic
from pydanube.tables.lake import Commit, DataFile, LakeSnapshot, LakeTable
from pydanube.tables.messages import Schemas, raw_rows, sort_messages, stamped
from pydanube.tables.state import Span, advanced, encode_positions, plan_spans
from pydanube.tables.upserts import UpsertRows

_log = logging.getLogger("pydanube.tables")

FILE_BYTES = 32 * 1024 * 1024
LOST_RACES_MAX = 1_000

OnBadMessage = Literal["dlq", "fail", "skip"]


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


class ExportRules(Struct, frozen=True, kw_only=True):
    """How one topic goes into its table."""

    starts: Mapping[str, int] = {}
    """Where physical topics enter, if not at their beginning."""
    on_bad_message: OnBadMessage = "dlq"
    upsert_key: tuple[str, ...] = ()
    """Columns of the key; none: rows are appended."""
    limits: Limits = Limits(bytes=128 * 1024 * 1024)
    """What one commit holds, about."""


class Exported(Struct, frozen=True, kw_only=True):
    """What one commit did."""

    commit: str
    rows: int
    """Rows written: in a table of keys, the last of each key."""
    messages: int
    bytes: int
    dead: int
    skipped: int
    spans: Mapping[str, Span]


class Exporter:
    """Brings one topic into one table. Blocks; one thread at a time."""

    def __init__(
        self,
        source: TopicSource,
        table: LakeTable,
        dead_table: LakeTable,
        schemas: TableSchemas,
        rules: ExportRules,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._source = source
        self._table = table
        self._dead_table = dead_table
        self._schemas = schemas
        self._rules = rules
        self._clock = clock
        self._randomness = randomness

    def export(self) -> Exported | None:
        """Commit what the topic has and the table lacks, up to the limits; None: nothing."""
        for _ in range(LOST_RACES_MAX):
            snapshot = self._load()
            topics = self._source.states()
            spans = plan_spans(snapshot.positions, topics, self._rules.starts, self._rules.limits)
            if not spans:
                return None
            self._schemas.refresh()
            done = _Attempt(self, snapshot, spans).run()
            if done is not None:
                return done
        raise Unavailable(
            f"table {self._table.name}: {LOST_RACES_MAX} commits in a row lost their race; "
            "run fewer exporters of this topic"
        )

    def _load(self) -> LakeSnapshot:
        snapshot = self._table.load()
        if snapshot is None:
            self._table.create(self._schemas.columns())
            snapshot = self._table.load()
        if snapshot is None:
            raise Unavailable(f"table {self._table.name} was created and is not there; try again")
        return snapshot


class _Attempt:
    """One range, one try."""

    def __init__(
        self, exporter: Exporter, snapshot: LakeSnapshot, spans: Mapping[str, Span]
    ) -> None:
        self._exporter = exporter
        self._rules = exporter._rules
        self._snapshot = snapshot
        self._spans = spans
        self._id = f"{exporter._randomness.below(2**128):032x}"
        self._columns = Columns(snapshot.columns)
        for each in ENVELOPE:
            misfit = self._columns.admit(each.name, each.type)
            if misfit is not None:
                raise TableOfAnotherTopic(
                    f"table {exporter._table.name} cannot hold messages: {misfit}. Name another "
                    "table, or let it be created"
                )
        self._files: list[DataFile] = []
        self._files_are_own = True
        """Whether the files are in no commit for certain."""
        self._dead_snapshot: LakeSnapshot | None = None
        self._rows = self._bytes = self._skipped = 0

    def run(self) -> Exported | None:
        """Commit the range; None: somebody else was faster, or nobody knows."""
        try:
            dead = self._write()
            committed = self._commit_dead_letters(dead) and self._commit_rows()
        finally:
            if self._files_are_own:
                self._snapshot.delete(self._files)
        if not committed:
            return None
        return Exported(
            commit=self._id,
            rows=self._rows,
            messages=sum(span.rows for span in self._spans.values()),
            bytes=self._bytes,
            dead=len(dead),
            skipped=self._skipped,
            spans=self._spans,
        )

    # Reading, decoding, writing.

    def _write(self) -> pa.Table:
        """Write the rows of the range to files; return its dead letters that are not kept yet."""
        upsert = UpsertRows(self._rules.upsert_key) if self._rules.upsert_key else None
        self._upsert = upsert
        waiting: list[pa.Table] = []
        dead: list[pa.Table] = []
        for raw in self._messages():
            found = sort_messages(
                raw, self._columns, self._exporter._schemas, empty_deletes=upsert is not None
            )
            letters, rows = found.dead, found.rows
            if upsert is not None:
                letters = pa.concat_tables([letters, upsert.add(raw, found)]).sort_by("offset")
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
            for first, batch in self._exporter._source.read(name, span):
                assert first == due, f"{name}: offset {first} came where {due} was due"
                due = first + batch.num_rows
                raw = raw_rows(batch, first, place)
                self._bytes += raw.nbytes
                if name in known:
                    raw = raw.filter(pc.invert(pc.is_in(raw.column("offset"), known[name])))
                if len(raw):
                    yield raw
            assert due == span.end, f"{name}: read up to {due}, wanted {span.end}"

    def _known_dead_letters(self) -> dict[str, pa.Array]:
        """Return offsets of the range that an earlier try has set aside, by physical topic."""
        if self._rules.on_bad_message != "dlq":
            return {}
        self._dead_snapshot = snapshot = self._exporter._dead_table.load()
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
                return stamped(letters, self._exporter._clock.now_ms())
            case "skip":
                self._skipped += len(letters)
                return DEAD_LETTERS.empty_table()
            case "fail":
                first = letters.slice(0, 1).to_pylist()[0]
                raise BadMessage(
                    f"{first['topic']}, partition {first['partition']}, offset {first['offset']} "
                    f"does not fit table {self._exporter._table.name}: {first['reason']}. Mend the "
                    "schema, or set the table to dlq or skip (danube table enable --on-error)"
                )

    def _write_file(self, rows: list[pa.Table]) -> None:
        whole = pa.concat_tables(
            [self._columns.arranged(_arrays(each), len(each)) for each in rows]
        )
        name = f"{self._id}-{len(self._files)}"
        self._files += self._snapshot.write(name, whole)
        self._rows += len(whole)

    # Committing.

    def _commit_dead_letters(self, dead: pa.Table) -> bool:
        """Commit dead letters before the rows around them; False: somebody else was faster."""
        if not len(dead):
            return True
        table = self._exporter._dead_table
        snapshot = self._dead_snapshot
        if snapshot is None:
            table.create(DEAD_LETTERS)
            return False  # Somebody else may have been faster, and have added to it.
        files = snapshot.write(f"{self._id}-dead", dead)
        commit = Commit(
            id=self._id,
            positions=advanced(snapshot.positions, self._spans),
            added=pa.schema([]),
            files=files,
            summary={"danube.commit": self._id},
        )
        outcome = _settle(table, snapshot, commit)
        if outcome == "lost":
            snapshot.delete(files)
        return outcome == "committed"

    def _commit_rows(self) -> bool:
        positions = advanced(self._snapshot.positions, self._spans)
        upsert = None
        if self._upsert is not None:
            upsert = self._upsert.reduced(self._columns)
            self._rows = len(upsert.rows)
        commit = Commit(
            id=self._id,
            positions=positions,
            added=self._columns.added,
            files=self._files,
            upsert=upsert,
            summary={"danube.commit": self._id, "danube.range": encode_positions(positions)},
        )
        self._files_are_own = False
        outcome = _settle(self._exporter._table, self._snapshot, commit)
        self._files_are_own = outcome == "lost"
        return outcome == "committed"


def _settle(
    table: LakeTable, snapshot: LakeSnapshot, commit: Commit
) -> Literal["committed", "lost", "unknown"]:
    """Commit; when the answer is lost, look for the commit.

    Unknown: it is not there and may yet appear, unless another one comes first.
    """
    try:
        return "committed" if snapshot.commit(commit) else "lost"
    except CommitOutcomeUnknown as error:
        _log.warning("table %s: %s; looking for commit %s", table.name, error, commit.id)
        return "committed" if table.holds(commit.id) else "unknown"


def _arrays(rows: pa.Table) -> dict[str, pa.Array]:
    whole = rows.combine_chunks()
    return {
        name: whole.column(name).chunk(0)
        for name in whole.column_names
        if whole.column(name).num_chunks
    }
