"""Topics in memory, tables for real, faults by plan: for tests of topics as tables."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from pydanube.errors import NotFound
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.randomness import SystemRandomness
from pydanube.schemas.catalog import load_format
from pydanube.schemas.format import Schema, SchemaTools
from pydanube.spark.source.planning import TopicState
from pydanube.spark.source.rows import Place
from pydanube.tables.columns import columns_of
from pydanube.tables.crew import Crew
from pydanube.tables.errors import CommitOutcomeUnknown
from pydanube.tables.export_rules import ExportRules
from pydanube.tables.exporter import Exporter
from pydanube.tables.lake import Commit, LakeSnapshot, LakeTable
from pydanube.tables.lake_types import lake_type
from pydanube.tables.partitioning import PartitionField
from pydanube.tables.ranges import TableTools
from pydanube.tables.state import Position, Span

MESSAGES = pa.schema(
    [
        ("publish_time", pa.int64()),
        ("producer_name", pa.string()),
        ("routing_key", pa.string()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("schema_id", pa.uint64()),
        ("schema_version", pa.uint32()),
        ("payload", pa.binary()),
    ]
)

FORMATS = ("delta", "iceberg", "bare iceberg")
"""Bare: in no catalogue."""
BATCH_ROWS = 7


class MemoryTopic:
    """A topic that is a list per partition."""

    def __init__(self, topic: str = "/default/orders", partitions: int | None = None) -> None:
        self.topic = topic
        names = [topic] if partitions is None else []
        names += [f"{topic}-part-{number}" for number in range(partitions or 0)]
        self.messages: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        self.ids = {name: f"id-{name}" for name in names}
        self.earliest: dict[str, int] = {}

    def publish(
        self,
        *payloads: Any,
        schema: tuple[int, int] | None = None,
        key: str | None = None,
        partition: int | None = None,
    ) -> None:
        name = self.topic if partition is None else f"{self.topic}-part-{partition}"
        for payload in payloads:
            data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            held = self.messages[name]
            held.append(
                {
                    "publish_time": 1_700_000_000_000 + 3_600_000 * len(held),
                    "producer_name": "p",
                    "routing_key": key,
                    "attributes": {"n": str(len(held))},
                    "schema_id": schema[0] if schema else None,
                    "schema_version": schema[1] if schema else None,
                    "payload": data,
                }
            )

    def add_partition(self, number: int) -> None:
        name = f"{self.topic}-part-{number}"
        self.messages[name] = []
        self.ids[name] = f"id-{name}"

    def recreate(self) -> None:
        for name in self.messages:
            self.messages[name] = []
            self.ids[name] += "-again"

    def states(self) -> Mapping[str, TopicState]:
        return {
            name: TopicState(
                id=self.ids[name],
                earliest=self.earliest.get(name, 0),
                frontier=len(held),
                row_bytes=100,
            )
            for name, held in self.messages.items()
        }

    def read(self, name: str, span: Span) -> Iterator[tuple[int, pa.RecordBatch]]:
        assert span.id == self.ids[name]
        for first in range(span.start, span.end, BATCH_ROWS):
            part = self.messages[name][first : min(first + BATCH_ROWS, span.end)]
            yield first, pa.RecordBatch.from_pylist(part, schema=MESSAGES)


class SchemaShelf:
    """Schemas by id and version; the highest version of the subject is for messages without."""

    def __init__(self) -> None:
        self._schemas: dict[tuple[int, int], Schema] = {}
        self.latest: Schema | None = None

    def add(self, schema_id: int, version: int, properties: Mapping[str, Any]) -> None:
        definition = {"type": "object", "properties": properties}
        json_schema = load_format("json_schema", SchemaTools())
        self.latest = json_schema.parse(json.dumps(definition).encode())
        self._schemas[schema_id, version] = self.latest

    def refresh(self) -> None:
        pass

    def of(self, schema_id: int | None, version: int | None) -> Schema | None:
        if schema_id is None or version is None:
            return self.latest
        found = self._schemas.get((schema_id, version))
        if found is None:
            raise NotFound(f"schema {schema_id} has no version {version}")
        return found

    def columns(self) -> pa.Schema:
        return columns_of(None if self.latest is None else lake_type(self.latest.arrow_type()))


class Lake:
    """Tables of one format under a directory."""

    def __init__(self, kind: str, root: Path, topic: str = "/default/orders") -> None:
        self.kind = kind
        self.root = root
        self.topic = topic

    def table(
        self,
        name: str = "orders",
        partitioning: Sequence[PartitionField] = (),
        shape: str = "",
    ) -> LakeTable:
        """Return a table through connections of its own, as another process would."""
        if self.is_delta:
            from pydanube.tables.delta import DeltaLakeTable

            path = str(self.root / name)
            return DeltaLakeTable(
                path, self.topic, SystemClock(), partitioning=partitioning, shape=shape
            )
        from pydanube.tables.iceberg import IcebergLakeTable

        return IcebergLakeTable(
            self.catalog(), f"default.{name}", self.topic, partitioning=partitioning, shape=shape
        )

    @property
    def is_delta(self) -> bool:
        return self.kind == "delta"

    def catalog(self) -> Any:
        from pydanube.tables.catalogs import open_catalog

        properties = {"type": "none", "warehouse": f"{self.root}/warehouse"}
        if self.kind == "iceberg":
            properties["type"] = "sql"
            properties["uri"] = f"sqlite:///{self.root}/catalog.db"
            properties["warehouse"] = f"file://{self.root}/warehouse"
        return open_catalog("tests", properties)

    def namespace(self) -> None:
        """Make the namespace of tables that somebody else makes, where that takes doing."""
        if self.kind == "iceberg":
            self.catalog().create_namespace("default")

    def data_files(self) -> set[str]:
        """Return the files of data there are, in a commit or not."""
        return {path.name for path in self.root.rglob("*.parquet") if "_delta_log" not in str(path)}

    def rows(self, name: str = "orders") -> list[dict[str, Any]]:
        """Return everything a table holds, as any reader sees it; none: there is no table."""
        snapshot = self.table(name).load()
        if snapshot is None:
            return []
        return snapshot.scan(snapshot.columns.names, {}).to_pylist()

    def positions(self, name: str = "orders") -> Mapping[str, Position]:
        snapshot = self.table(name).load()
        assert snapshot is not None
        return snapshot.positions


class MemoryToolbox:
    """Tools over a topic in memory; each opening loads tables through connections of its own."""

    def __init__(
        self,
        lake: Lake,
        topic: MemoryTopic,
        schemas: SchemaShelf,
        table: LakeTable | None = None,
        dead: LakeTable | None = None,
    ) -> None:
        self._lake = lake
        self._topic = topic
        self._schemas = schemas
        self._table = table
        self._dead = dead

    @contextmanager
    def open(self) -> Iterator[TableTools]:
        yield TableTools(
            source=self._topic,
            main=self._table or self._lake.table(),
            dead=self._dead or self._lake.table("orders__dlq"),
            schemas=self._schemas,
            clock=SystemClock(),
            randomness=SystemRandomness(),
        )


def exporter(
    lake: Lake,
    topic: MemoryTopic,
    schemas: SchemaShelf,
    *,
    table: LakeTable | None = None,
    dead: LakeTable | None = None,
    crew: Crew | None = None,
    **rules: Any,
) -> Exporter:
    toolbox = MemoryToolbox(lake, topic, schemas, table, dead)
    with toolbox.open() as tools:
        return Exporter(tools, ExportRules(**rules), crew, toolbox)


def export_all(running: Exporter) -> int:
    """Export until there is nothing left; return how many commits that took."""
    commits = 0
    while running.export() is not None:
        commits += 1
        assert commits < 10_000
    return commits


def race(export: Callable[[], int], exporters: int = 3) -> int:
    """Let several export at the same time; return their commits, or raise what one of them met."""
    with ThreadPoolExecutor(exporters) as pool:
        return sum(future.result() for future in [pool.submit(export) for _ in range(exporters)])


def check_complete(
    topic: MemoryTopic, lake: Lake, *, dead: Sequence[tuple[str, int]] = (), start: int = 0
) -> list[dict[str, Any]]:
    """The law: each message once, in the table or among its dead letters; return the table."""
    rows, letters = lake.rows(), lake.rows("orders__dlq")
    places = [(row["topic"], row["partition"], row["offset"]) for row in rows]
    dead_places = [(row["topic"], row["partition"], row["offset"]) for row in letters]
    assert len(set(places)) == len(places), "a row is there twice"
    assert len(set(dead_places)) == len(dead_places), "a dead letter is there twice"
    expected = {}
    for name, held in topic.messages.items():
        place = Place.of(name)
        for offset, message in enumerate(held[start:], start):
            expected[place.topic, place.partition, offset] = message
    wanted_dead = {(Place.of(name).topic, Place.of(name).partition, at) for name, at in dead}
    assert set(dead_places) == wanted_dead
    assert set(places) == set(expected) - wanted_dead, "rows are lost or made up"
    for row in rows:
        _check_content(row, expected[row["topic"], row["partition"], row["offset"]])
    for row in letters:
        assert row["payload"] == expected[row["topic"], row["partition"], row["offset"]]["payload"]
        assert row["reason"]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def _check_content(row: dict[str, Any], message: dict[str, Any]) -> None:
    assert int(row["publish_time"].timestamp() * 1000) == message["publish_time"]
    assert dict(row["attributes"]) == message["attributes"]
    assert row["routing_key"] == message["routing_key"]
    if "payload" in row and message["schema_id"] is None:
        assert row["payload"] == message["payload"]
        return
    for name, value in json.loads(message["payload"]).items():
        if name in row:
            assert row[name] == value, f"{name} of offset {row['offset']}"


class Killed(BaseException):
    """The exporter dies here; nothing of it runs any more."""


class FaultyTable:
    """A table whose user is killed, or loses an answer, at a chosen step.

    `at` is one of "before write", "after write", "before commit", "after commit", "lost answer",
    "before remove".
    After a kill every call fails, as of a dead process, so that nothing is tidied up.
    """

    def __init__(self, table: LakeTable, at: str) -> None:
        self.table = table
        self.at: str | None = at
        self.dead = False
        self.name = table.name

    def load(self) -> "FaultySnapshot | None":
        self.check()
        snapshot = self.table.load()
        return None if snapshot is None else FaultySnapshot(self, snapshot)

    def create(self, columns: pa.Schema) -> None:
        self.check()
        self.table.create(columns)

    def holds(self, commit_id: str) -> bool:
        self.check()
        return self.table.holds(commit_id)

    def check(self) -> None:
        if self.dead:
            raise Killed

    def kill(self, at: str) -> None:
        self.check()
        if self.at == at:
            self.at, self.dead = None, True
            raise Killed


class FaultySnapshot:
    def __init__(self, owner: FaultyTable, snapshot: LakeSnapshot) -> None:
        self.owner = owner
        self.snapshot = snapshot
        self.positions = snapshot.positions
        self.columns = snapshot.columns

    def write(self, name: str, rows: pa.Table) -> Any:
        self.owner.kill("before write")
        files = self.snapshot.write(name, rows)
        self.owner.kill("after write")
        return files

    def commit(self, commit: Commit) -> bool:
        self.owner.kill("before commit")
        done = self.snapshot.commit(commit)
        self.owner.kill("after commit")
        if done and self.owner.at == "lost answer":
            self.owner.at = None
            raise CommitOutcomeUnknown("the answer was lost")
        return done

    def delete(self, files: Any) -> None:
        self.owner.check()
        self.snapshot.delete(files)

    def scan(self, columns: Any, bounds: Any) -> pa.Table:
        self.owner.check()
        return self.snapshot.scan(columns, bounds)

    def remove(self, places: Any) -> bool:
        self.owner.kill("before remove")
        return self.snapshot.remove(places)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.snapshot, name)
