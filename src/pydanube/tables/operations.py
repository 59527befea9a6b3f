"""What an operator does with tables: typed verbs with typed results. Blocks."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec import Struct, structs

from pydanube.errors import InvalidRequest, NotFound
from pydanube.spark.source.planning import TopicState
from pydanube.tables.book import TableBook
from pydanube.tables.catalogs import Tables, open_tables
from pydanube.tables.crew import HereWorkers, Workers
from pydanube.tables.lake import LakeTable
from pydanube.tables.partitioning import check_partitioning, read_partitioning
from pydanube.tables.rebuilding import Rebuilt, rebuild
from pydanube.tables.reprocessing import Reprocessed, reprocess
from pydanube.tables.service import Progress, RunningTable, Surroundings
from pydanube.tables.settings import (
    PATTERNS_TOPIC,
    TableSetting,
    changes_between,
    check_pattern_setting,
    check_setting,
    is_pattern,
    setting_for,
)
from pydanube.tables.state import backlog
from pydanube.tables.topic_schemas import TopicSchemas
from pydanube.tables.topic_source import BrokerTopic
from pydanube.tables.verifying import Verdict
from pydanube.tables.verifying_parts import Check, size_of, verify

if TYPE_CHECKING:
    from pydanube.tables.maintenance import Upkeep, Which


class TableLine(Struct, frozen=True, kw_only=True):
    """One table in a list."""

    topic: str
    format: str
    table: str
    catalog: str | None
    mode: str
    freshness_ms: int


class EnabledTable(Struct, frozen=True, kw_only=True):
    """What a topic will be as a table."""

    topic: str
    table: str
    dead_letters: str
    columns: list[str]
    topics: list[str] = []
    """Of a pattern: those it matches now."""
    dry_run: bool = False
    """Whether nothing was changed: this is what it would be."""


class TableStatus(Struct, frozen=True, kw_only=True):
    """How far a table is."""

    topic: str
    table: str
    format: str
    next_offsets: dict[str, int]
    """By partition: the first offset the table lacks."""
    lag_rows: int
    lag_seconds: float
    """Since the last commit, while there is a lag."""
    files: int
    bytes: int
    snapshots: int
    dead_letters: int
    last_commit_ms: int | None


class TableOperations:
    """Verbs on tables, over one cluster."""

    def __init__(self, given: Surroundings) -> None:
        self._given = given
        self._book = TableBook(given.access)

    def enable(self, topic: str, setting: TableSetting, *, dry_run: bool = False) -> EnabledTable:
        """Make a topic a table; whatever makes no sense is refused before anything changes.

        A pattern stands for all topics it matches, also those to come.
        """
        if is_pattern(topic):
            return self._enable_pattern(topic, setting, dry_run=dry_run)
        found = self._checked(topic, setting)
        if dry_run:
            return structs.replace(found, dry_run=True)
        self._tables(topic, setting).main.load()
        self._book.put(topic, setting)
        return found

    def rebuild(
        self, topic: str, setting: TableSetting | None = None, *, dry_run: bool = False
    ) -> Rebuilt:
        """Make a table anew from its topic, under its name, perhaps in another way than before.

        `dry_run` tells what it would be, and what of the setting would change.
        """
        wanted = self._book.get(topic) if setting is None else setting
        if is_pattern(topic):
            raise InvalidRequest(f"{topic} is a pattern; make one table after the other anew")
        columns = self._checked(topic, wanted, anew=True).columns
        changes: list[str] = []
        with suppress(NotFound):  # It need not be enabled.
            changes = changes_between(self._book.get(topic), wanted)
        with self._given.toolbox_of(topic, wanted).open() as tools:
            done = rebuild(tools, wanted.rules(), dry_run=dry_run)
        if setting is not None and not dry_run:
            self._book.put(topic, setting)
        return structs.replace(done, columns=columns, changes=changes)

    def _checked(self, topic: str, setting: TableSetting, *, anew: bool = False) -> EnabledTable:
        """Return what a topic would be as a table, if it can be one; change nothing."""
        check_setting(setting)
        columns = TopicSchemas(self._given.registry, topic).columns()
        check_partitioning(read_partitioning(setting.partition_by), columns)
        if setting.layout == "danube-iceberg" and topic not in self._states(topic):
            raise InvalidRequest(
                f"layout danube-iceberg has no column for the partition, and {topic} has several; "
                "take layout danube"
            )
        tables = self._tables(topic, setting)
        if not anew:
            tables.main.check()
        return EnabledTable(
            topic=topic,
            table=tables.main.name,
            dead_letters=tables.dead.name,
            columns=[f"{each.name} {each.type}" for each in columns],
        )

    def _enable_pattern(
        self, pattern: str, setting: TableSetting, *, dry_run: bool
    ) -> EnabledTable:
        check_pattern_setting(setting)
        topics = self._book.topics_of(pattern)
        for topic in topics:
            self._checked(topic, setting_for(setting, topic))
        found = EnabledTable(
            topic=pattern,
            table=setting.table,
            dead_letters=setting.dead_letters,
            columns=[],
            topics=topics,
            dry_run=dry_run,
        )
        if dry_run:
            return found
        for topic in topics:
            self._tables(topic, setting_for(setting, topic)).main.load()
        if not self._book.patterns():
            self._given.registry.ensure_topic(PATTERNS_TOPIC)
        self._book.put(pattern, setting)
        return found

    def _states(self, topic: str) -> Mapping[str, TopicState]:
        return BrokerTopic(self._given.access, topic).states()

    def ends_of(self, topic: str) -> dict[str, int]:
        """Return where a topic's partitions end now, for a table that starts there."""
        return self._book.latest_offsets(topic)

    def disable(self, topic: str) -> TableLine:
        """Make a topic no table any more; the table and how far it is stay."""
        if is_pattern(topic):
            line = _line(topic, self._book.patterns().get(topic) or self._book.get(topic))
        else:
            line = _line(topic, self._book.get(topic))
        self._book.remove(topic)
        return line

    def all(self) -> list[TableLine]:
        """Return all topics that are tables."""
        return [_line(topic, setting) for topic, setting in self._book.all().items()]

    def status(self, topic: str) -> TableStatus:
        """Tell how far a table is."""
        setting = self._book.get(topic)
        tables = self._tables(topic, setting)
        states = self._states(topic)
        snapshot = tables.main.load()
        positions = {} if snapshot is None else snapshot.positions
        rows, _ = backlog(positions, states, setting.starts)
        facts = None if snapshot is None else snapshot.facts()
        last_ms = None if facts is None else facts.last_commit_ms
        waited = 0.0 if last_ms is None else (self._given.clock.now_ms() - last_ms) / 1000
        return TableStatus(
            topic=topic,
            table=tables.main.name,
            format=setting.format,
            next_offsets={name: each.next for name, each in positions.items()},
            lag_rows=rows,
            lag_seconds=waited if rows else 0.0,
            files=0 if facts is None else facts.files,
            bytes=0 if facts is None else facts.bytes,
            snapshots=0 if facts is None else facts.snapshots,
            dead_letters=len(_places(tables.dead)),
            last_commit_ms=last_ms,
        )

    def backfill(self, topic: str, report: Callable[[Progress], None]) -> TableStatus:
        """Bring everything a topic has now into its table."""
        running = RunningTable(topic, self._book.get(topic), self._given)
        for progress in running.drain():
            report(progress)
        return self.status(topic)

    def verify(self, topic: str, *, content: bool = False) -> Verdict:
        """Compare what a table holds with what it says it holds, and with its topic.

        With `content`, rows are compared with what their messages decode to, as far as the topic
        still has them.
        """
        setting = self._book.get(topic)
        tables = self._tables(topic, setting)
        snapshot = tables.main.load()
        return verify(
            tables.main.name,
            {} if snapshot is None else snapshot.positions,
            self._states(topic),
            Check(
                starts=setting.starts,
                may_lack=setting.mode == "upsert" or setting.on_error == "skip",
                content=content,
            ),
            self._workers_for(tables.main, tables.dead),
            self._given.toolbox_of(topic, setting),
        )

    def reprocess(self, topic: str, where: str = "", *, dry_run: bool = False) -> Reprocessed:
        """Try dead letters again, by the schemas of today; those alone that meet a condition."""
        setting = self._book.get(topic)
        tables = self._tables(topic, setting)
        toolbox = self._given.toolbox_of(topic, setting)
        workers = self._workers_for(tables.dead)
        return reprocess(toolbox, workers, key=setting.key, where=where, dry_run=dry_run)

    def compact(self, topic: str, *, dry_run: bool = False) -> "list[Upkeep]":
        """Join small files of a table and of its dead letters."""
        from pydanube.tables import maintenance

        setting = self._book.get(topic)
        done = []
        for which, table in self._existing(topic):
            toolbox = self._given.toolbox_of(topic, setting)
            join = maintenance.join_by(self._workers_for(table), toolbox)
            done.append(
                maintenance.compact(
                    table, self._given.randomness, which=which, join=join, dry_run=dry_run
                )
            )
        return done

    def expire(
        self, topic: str, keep_days: int, keep_snapshots: int, *, dry_run: bool = False
    ) -> "list[Upkeep]":
        """Forget what a table and its dead letters were, then remove files of nobody."""
        from pydanube.tables.expiring import Keeping, expire

        now_ms = self._given.clock.now_ms()
        keeping = Keeping(days=keep_days, snapshots=keep_snapshots)
        done = [
            expire(table, now_ms, keeping, dry_run=dry_run) for _, table in self._existing(topic)
        ]
        return [*done, *self.vacuum(topic, dry_run=dry_run)]

    def vacuum(self, topic: str, *, dry_run: bool = False) -> "list[Upkeep]":
        """Remove files of a table and of its dead letters that belong to nobody."""
        from pydanube.tables.expiring import vacuum

        now_ms = self._given.clock.now_ms()
        return [vacuum(table, now_ms, dry_run=dry_run) for _, table in self._existing(topic)]

    def _workers_for(self, *tables: LakeTable) -> Workers:
        """Return who looks after tables: the crew, if they are large."""
        crew = self._given.crew
        return HereWorkers() if crew is None or not crew.takes(size_of(tables)) else crew.workers

    def _existing(self, topic: str) -> "list[tuple[Which, LakeTable]]":
        tables = self._tables(topic, self._book.get(topic))
        both: list[tuple[Which, LakeTable]] = [("main", tables.main), ("dead", tables.dead)]
        return [(which, table) for which, table in both if table.load() is not None]

    def _tables(self, topic: str, setting: TableSetting) -> Tables:
        return open_tables(topic, setting, self._given.catalogs, self._given.clock)


def _places(table: LakeTable) -> pa.Table:
    snapshot = table.load()
    if snapshot is None:
        return pa.schema([("partition", pa.int32()), ("offset", pa.int64())]).empty_table()
    return snapshot.scan(["partition", "offset"], {})


def _line(topic: str, setting: TableSetting) -> TableLine:
    return TableLine(
        topic=topic,
        format=setting.format,
        table=setting.table,
        catalog=setting.catalog,
        mode=setting.mode,
        freshness_ms=setting.freshness_ms,
    )
