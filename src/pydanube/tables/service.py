"""Every topic that is a table, brought into it until told to stop."""

import logging
from collections.abc import Callable, Mapping

from msgspec import Struct

from pydanube.errors import DanubeError
from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import Randomness
from pydanube.spark.brokers import Brokers
from pydanube.spark.options import Access, ReadOptions, Selection
from pydanube.spark.source.cursors import Cursors
from pydanube.spark.source.planning import TopicState
from pydanube.tables.book import TableBook
from pydanube.tables.catalog_settings import Catalogs
from pydanube.tables.catalogs import Tables, open_tables
from pydanube.tables.crew import Crew
from pydanube.tables.exporter import Exported, Exporter
from pydanube.tables.ranges import TableTools
from pydanube.tables.settings import COMMIT_BYTES, TableSetting
from pydanube.tables.state import Positions, backlog
from pydanube.tables.toolboxes import BrokerToolbox
from pydanube.tables.topic_schemas import RegistryConnection, TopicSchemas
from pydanube.tables.topic_source import SHORT, BrokerTopic

_log = logging.getLogger("pydanube.tables")

DISCOVERY_MS = 5_000
LOOK_MS = 1_000
PAUSE_MS_FIRST = 1_000
PAUSE_MS_LAST = 60_000
HOLD_MS = 7 * 86_400_000


class Progress(Struct, frozen=True, kw_only=True):
    """What happened to one table."""

    topic: str
    table: str
    done: Exported | None = None
    lag_rows: int = 0
    failure: str | None = None


Report = Callable[[Progress], None]
Stopping = Callable[[float], bool]
"""Waits so many seconds, or less; tells whether it is time to stop."""


class Surroundings(Struct, frozen=True, kw_only=True):
    """What exporters are given."""

    access: Access
    catalogs: Catalogs
    registry: RegistryConnection
    clock: Clock
    randomness: Randomness
    crew: Crew | None = None
    """Who does what is large; None: everything is done here."""

    def toolbox_of(self, topic: str, setting: TableSetting) -> BrokerToolbox:
        """Return what workers need for a topic."""
        return BrokerToolbox(
            access=self.access, catalogs=dict(self.catalogs), topic=topic, setting=setting
        )


class RunningTable:
    """One topic on its way into its table."""

    def __init__(self, topic: str, setting: TableSetting, given: Surroundings) -> None:
        self.topic = topic
        self.setting = setting
        self._clock = given.clock
        self._source = BrokerTopic(given.access, topic)
        self.tables: Tables = open_tables(topic, setting, given.catalogs, given.clock)
        tools = TableTools(
            source=self._source,
            main=self.tables.main,
            dead=self.tables.dead,
            schemas=TopicSchemas(given.registry, topic),
            clock=given.clock,
            randomness=given.randomness,
        )
        self._exporter = Exporter(
            tools, setting.rules(), given.crew, given.toolbox_of(topic, setting)
        )
        self._hold = Cursors(
            Brokers(given.access, SHORT),
            ReadOptions(
                access=given.access,
                selection=Selection(names=(topic,)),
                starting_offsets="earliest",
                subscription=setting.hold,
                hold_ttl_ms=HOLD_MS,
            ),
        )
        self._held = False
        self._due_ms = 0
        self._committed_ms = 0
        self._pause_ms = PAUSE_MS_FIRST

    def step(self) -> Progress | None:
        """Commit what is due; None: nothing is."""
        now = self._clock.monotonic_ms()
        if now < self._due_ms:
            return None
        try:
            found = self._export_if_due(now)
        except Exception as error:  # noqa: BLE001  One table must not stop the others.
            self._due_ms = now + self._pause_ms
            self._pause_ms = min(self._pause_ms * 2, PAUSE_MS_LAST)
            if not isinstance(error, DanubeError):
                _log.exception("table %s", self.setting.table)
            code = getattr(error, "code", type(error).__name__)
            return self._progress(failure=f"{code}: {error}")
        self._pause_ms = PAUSE_MS_FIRST
        return found

    def drain(self) -> list[Progress]:
        """Commit what the topic has now, all of it; later messages may come along."""
        self._take_hold()
        target = {name: state.frontier for name, state in self._source.states().items()}
        steps = []
        while any(self._positions_next(name) < end for name, end in target.items()):
            done = self._exporter.export()
            if done is None:
                break
            steps.append(self._after(done))
        return steps

    def _export_if_due(self, now: int) -> Progress | None:
        self._due_ms = now + min(self.setting.freshness_ms, LOOK_MS)
        self._take_hold()
        states = self._source.states()
        rows, size = backlog(self._positions(), states, self.setting.starts)
        waited = now - self._committed_ms
        if not rows or (waited < self.setting.freshness_ms and size < COMMIT_BYTES):
            return None
        done = self._exporter.export()
        if done is None:
            return None
        self._committed_ms = now
        if size >= COMMIT_BYTES:
            self._due_ms = now  # There is more.
        return self._after(done)

    def _after(self, done: Exported) -> Progress:
        self._hold.advance({name: span.end for name, span in done.spans.items()})
        rows, _ = backlog(self._positions(), self._source.states(), self.setting.starts)
        return self._progress(done=done, lag_rows=rows)

    def _take_hold(self) -> None:
        """Keep the history that the table lacks; a failure of that alone stops nothing."""
        if self._held:
            return
        positions = self._positions()
        states: Mapping[str, TopicState] = self._source.states()
        starts = {
            name: positions[name].next
            if name in positions
            else max(state.earliest, self.setting.starts.get(name, 0))
            for name, state in states.items()
        }
        try:
            self._hold.begin(starts)
        except DanubeError as error:
            _log.warning(
                "topic %s: no cursor holds the messages that the table lacks: %s", self.topic, error
            )
        self._held = True

    def _positions(self) -> Positions:
        snapshot = self.tables.main.load()
        return {} if snapshot is None else snapshot.positions

    def _positions_next(self, name: str) -> int:
        position = self._positions().get(name)
        return self.setting.starts.get(name, 0) if position is None else position.next

    def _progress(
        self, done: Exported | None = None, lag_rows: int = 0, failure: str | None = None
    ) -> Progress:
        return Progress(
            topic=self.topic,
            table=self.setting.table,
            done=done,
            lag_rows=lag_rows,
            failure=failure,
        )


class TableService:
    """Serves every topic that is a table, in one thread; any number of them may run."""

    def __init__(self, given: Surroundings, report: Report) -> None:
        self._given = given
        self._report = report
        self._book = TableBook(given.access)
        self._running: dict[str, RunningTable] = {}
        self._look_ms = 0

    def run(self, stopping: Stopping) -> None:
        """Serve until told to stop; what was begun is finished."""
        wait = 0.0
        while not stopping(wait):
            self._discover()
            for running in list(self._running.values()):
                progress = running.step()
                if progress is not None:
                    self._report(progress)
                if stopping(0.0):
                    return
            wait = 0.1

    def _discover(self) -> None:
        now = self._given.clock.monotonic_ms()
        if now < self._look_ms:
            return
        self._look_ms = now + DISCOVERY_MS
        try:
            settings = self._book.all()
        except DanubeError as error:
            self._report(Progress(topic="", table="", failure=f"{error.code}: {error}"))
            return
        for topic in list(self._running):
            if settings.get(topic) != self._running[topic].setting:
                del self._running[topic]
        for topic, setting in settings.items():
            if topic not in self._running:
                try:
                    self._running[topic] = RunningTable(topic, setting, self._given)
                except DanubeError as error:
                    failure = f"{error.code}: {error}"
                    self._report(Progress(topic=topic, table=setting.table, failure=failure))
