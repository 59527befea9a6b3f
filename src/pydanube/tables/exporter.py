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
from collections.abc import Mapping
from typing import Literal

import pyarrow as pa
from msgspec import Struct, structs

from pydanube.errors import Unavailable
from pydanube.spark.source.planning import Limits, TopicState
from pydanube.tables.columns import DEAD_LETTERS, ENVELOPE, Columns
from pydanube.tables.crew import Crew, Toolbox
from pydanube.tables.errors import CommitOutcomeUnknown, TableOfAnotherTopic
from pydanube.tables.export_rules import ExportRules
from pydanube.tables.exporting_pieces import plan_tasks, write_pieces
from pydanube.tables.lake import Commit, DataFile, LakeSnapshot, LakeTable, Upsert
from pydanube.tables.ranges import RangeWriter, TableTools
from pydanube.tables.state import Span, advanced, encode_positions, plan_spans

_log = logging.getLogger("pydanube.tables")

LOST_RACES_MAX = 1_000


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
    pieces: int = 0
    """Into how many the range was cut for workers; 0: it was written here."""


class Exporter:
    """Brings one topic into one table. Blocks; one thread at a time.

    With a crew, ranges of its size are written by its workers, and committed here. Tables with a
    key are always written here: a commit of theirs is small.
    """

    def __init__(
        self,
        tools: TableTools,
        rules: ExportRules,
        crew: Crew | None = None,
        toolbox: Toolbox | None = None,
    ) -> None:
        self._tools = tools
        self._rules = rules
        self._crew = None if rules.upsert_key else crew
        self._toolbox = toolbox

    def export(self) -> Exported | None:
        """Commit what the topic has and the table lacks, up to the limits; None: nothing."""
        for _ in range(LOST_RACES_MAX):
            snapshot = self._load()
            topics = self._tools.source.states()
            spans, crew = self._plan(snapshot, topics)
            if not spans:
                return None
            self._tools.schemas.refresh()
            attempt = _Attempt(self._tools, self._rules, snapshot, spans)
            if crew is not None and self._toolbox is not None:
                sizes = {name: topic.row_bytes for name, topic in topics.items()}
                done = attempt.run_by(crew, self._toolbox, sizes)
            else:
                done = attempt.run()
            if done is not None:
                return done
        raise Unavailable(
            f"table {self._tools.main.name}: {LOST_RACES_MAX} commits in a row lost their race; "
            "run fewer exporters of this topic"
        )

    def _plan(
        self, snapshot: LakeSnapshot, topics: Mapping[str, TopicState]
    ) -> tuple[dict[str, Span], Crew | None]:
        """Choose the next range, and who writes it."""
        rules = self._rules
        if self._crew is not None:
            limits = Limits(bytes=self._crew.commit_bytes)
            spans = plan_spans(snapshot.positions, topics, rules.starts, limits)
            size = sum(span.rows * topics[name].row_bytes for name, span in spans.items())
            if self._crew.takes(size):
                return spans, self._crew
        return plan_spans(snapshot.positions, topics, rules.starts, rules.limits), None

    def _load(self) -> LakeSnapshot:
        table = self._tools.main
        snapshot = table.load()
        if snapshot is None:
            table.create(self._tools.schemas.columns())
            snapshot = table.load()
        if snapshot is None:
            raise Unavailable(f"table {table.name} was created and is not there; try again")
        return snapshot


class _Attempt:
    """One range, one try."""

    def __init__(
        self,
        tools: TableTools,
        rules: ExportRules,
        snapshot: LakeSnapshot,
        spans: Mapping[str, Span],
    ) -> None:
        self._tools = tools
        self._rules = rules
        self._snapshot = snapshot
        self._spans = spans
        self._id = f"{tools.randomness.below(2**128):032x}"
        self._columns = Columns(snapshot.columns)
        for each in ENVELOPE:
            misfit = self._columns.admit(each.name, each.type)
            if misfit is not None:
                raise TableOfAnotherTopic(
                    f"table {tools.main.name} cannot hold messages: {misfit}. Name another "
                    "table, or let it be created"
                )
        self._files: list[DataFile] = []
        self._files_are_own = True
        """Whether the files are in no commit for certain."""

    def run(self) -> Exported | None:
        """Write the range here and commit it; None: somebody else was faster, or nobody knows."""
        writer = RangeWriter(
            self._tools, self._rules, self._snapshot, self._spans, self._columns, self._id
        )
        try:
            self._files = writer.files
            dead = writer.write()
            upsert = None if writer.upsert is None else writer.upsert.reduced(self._columns)
            committed = self._set_aside(writer, dead) and self._commit_rows(upsert)
        finally:
            if self._files_are_own:
                self._snapshot.delete(self._files)
        rows = writer.rows if upsert is None else len(upsert.rows)
        return self._exported(rows, writer.bytes, len(dead), writer.skipped) if committed else None

    def run_by(self, crew: Crew, toolbox: Toolbox, row_bytes: Mapping[str, int]) -> Exported | None:
        """Have the range written by a crew, and commit it."""
        dead_snapshot = self._dead_letters() if self._rules.on_bad_message == "dlq" else None
        tasks = plan_tasks(crew, self._rules, self._spans, row_bytes, self._columns, self._id)
        written = write_pieces(crew, toolbox, tasks, self._columns)
        self._files = written.files
        committed = False
        try:
            committed = self._commit_dead(dead_snapshot, written.dead_files) and self._commit_rows()
        finally:
            if self._files_are_own:
                self._snapshot.delete(self._files)
        if not committed:
            return None
        done = self._exported(written.rows, written.bytes, written.dead, written.skipped)
        return structs.replace(done, pieces=len(tasks))

    def _exported(self, rows: int, size: int, dead: int, skipped: int) -> Exported:
        return Exported(
            commit=self._id,
            rows=rows,
            messages=sum(span.rows for span in self._spans.values()),
            bytes=size,
            dead=dead,
            skipped=skipped,
            spans=self._spans,
        )

    # Committing.

    def _set_aside(self, writer: RangeWriter, dead: pa.Table) -> bool:
        """Commit dead letters before the rows around them; False: somebody else was faster."""
        if not len(dead):
            return True
        snapshot = writer.dead_snapshot
        if snapshot is None:
            self._tools.dead.create(DEAD_LETTERS)
            return False  # Somebody else may have been faster, and have added to it.
        return self._commit_dead(snapshot, snapshot.write(f"{self._id}-dead", dead))

    def _dead_letters(self) -> LakeSnapshot:
        """Return the dead letters there are, before workers look at them."""
        table = self._tools.dead
        snapshot = table.load()
        if snapshot is None:
            table.create(DEAD_LETTERS)
            snapshot = table.load()
        if snapshot is None:
            raise Unavailable(f"table {table.name} was created and is not there; try again")
        return snapshot

    def _commit_dead(self, snapshot: LakeSnapshot | None, files: list[DataFile]) -> bool:
        if not files:
            return True
        assert snapshot is not None, "only tables that keep dead letters have files of them"
        commit = Commit(
            id=self._id,
            positions=advanced(snapshot.positions, self._spans),
            added=pa.schema([]),
            files=files,
            summary={"danube.commit": self._id},
        )
        outcome = _settle(self._tools.dead, snapshot, commit)
        if outcome == "lost":
            snapshot.delete(files)
        return outcome == "committed"

    def _commit_rows(self, upsert: Upsert | None = None) -> bool:
        positions = advanced(self._snapshot.positions, self._spans)
        commit = Commit(
            id=self._id,
            positions=positions,
            added=self._columns.added,
            files=self._files,
            upsert=upsert,
            summary={"danube.commit": self._id, "danube.range": encode_positions(positions)},
        )
        self._files_are_own = False
        outcome = _settle(self._tools.main, self._snapshot, commit)
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
