"""Exporters killed at every step, over and over, beside each other: the table stays exact."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pydanube
from pydanube.tables.catalog_settings import CatalogSetting
from pydanube.tables.opening import open_tables_of
from pydanube.tables.operations import TableOperations
from pydanube.tables.settings import TableSetting
from pydanube.testing.broker import Broker
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from tests.support.killed_exporter import BARE_STEPS, STEPS
from tests.support.raw_client import RawClient
from tests.support.spark_topics import Topics, create_partitions

FIRST = {"type": "object", "properties": {"number": {"type": "integer"}}}
SECOND = {"type": "object", "properties": {**FIRST["properties"], "note": {"type": "string"}}}


class Exporters:
    """Real processes that bring topics into tables, until they are killed."""

    def __init__(self, url: str, catalogs: Path) -> None:
        command = [sys.executable, "-m", "tests.support.killed_exporter", url, str(catalogs)]
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
        )

    def run(self, topic: str, step: str, count: int = 1) -> list[str]:
        """Run so many at once; return how each ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{topic}|{step}|{count}\n")
        self._process.stdin.flush()
        found: list[str] = json.loads(self._process.stdout.readline())
        return found

    def end(self) -> None:
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


class Scene:
    """A partitioned topic with a schema, and what was acknowledged by it."""

    def __init__(self, broker: Broker, topic: str, subject: str) -> None:
        self.broker = broker
        self.topic = topic
        self.subject = subject
        self.sent: dict[tuple[int, int], bytes] = {}
        create_partitions(broker, topic, 2)

    def parts(self) -> list[str]:
        return [f"{self.topic}-part-{number}" for number in range(2)]

    def register(self, definition: Any) -> None:
        asyncio.run(self._register(definition))

    async def _register(self, definition: Any) -> None:
        async with pydanube.connect(self.broker.url) as client:
            await client.schemas.register(self.subject, json.dumps(definition))
            await client.schemas.configure_topic(self.topic, self.subject, policy="none")

    def publish(self, *payloads: bytes) -> None:
        asyncio.run(self._publish(payloads))

    async def _publish(self, payloads: tuple[bytes, ...]) -> None:
        async with pydanube.connect(self.broker.url) as client:
            for number, part in enumerate(self.parts()):
                async with client.producer(part) as producer:
                    for payload in payloads:
                        at = await producer.send(payload)
                        assert at.offset is not None
                        self.sent[number, at.offset] = payload


@pytest.fixture
def lake(tmp_path: Path) -> dict[str, CatalogSetting]:
    properties = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/lake"}
    bare = CatalogSetting(type="none", properties={"warehouse": f"{tmp_path}/bare"})
    return {"lake": CatalogSetting(type="sql", properties=properties), "bare": bare}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def tables(broker: Broker, lake: dict[str, CatalogSetting]) -> Iterator[TableOperations]:
    with open_tables_of(broker.url, lake) as tables:
        yield tables


@pytest.fixture
def exporters(
    broker: Broker, lake: dict[str, CatalogSetting], tmp_path: Path
) -> Iterator[Exporters]:
    path = tmp_path / "catalogs.json"
    path.write_bytes(msgspec.json.encode(lake))
    running = Exporters(broker.url, path)
    yield running
    running.end()


def settings(kind: str, root: Path) -> TableSetting:
    if kind == "delta":
        return TableSetting(format="delta", table=f"{root}/orders")
    catalog = "lake" if kind == "iceberg" else "bare"
    return TableSetting(format="iceberg", table="default.orders", catalog=catalog)


def rows_of(
    kind: str, root: Path, lake: dict[str, CatalogSetting], name: str
) -> list[dict[str, Any]]:
    """Read a table as anybody does, without our code."""
    if kind == "delta":
        from deltalake import DeltaTable

        found: list[dict[str, Any]] = DeltaTable(f"{root}/{name}").to_pyarrow_table().to_pylist()
        return found
    if kind == "bare iceberg":
        from pyiceberg.table import StaticTable

        by_path = StaticTable.from_metadata(f"{root}/bare/default/{name}")
        return by_path.scan().to_arrow().to_pylist()
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("lake", type="sql", **lake["lake"].properties)
    return catalog.load_table(f"default.{name}").scan().to_arrow().to_pylist()


def check_exact(scene: Scene, rows: list[dict[str, Any]], dead: list[dict[str, Any]]) -> None:
    """The law: what was acknowledged is in the table or among its dead letters, once."""
    places = [(row["partition"], row["offset"]) for row in [*rows, *dead]]
    assert len(places) == len(set(places)), "a message is there twice"
    assert set(places) == set(scene.sent), "messages are lost or made up"
    for row in rows:
        payload = json.loads(scene.sent[row["partition"], row["offset"]])
        assert row["number"] == payload["number"]
        assert row.get("note") == payload.get("note")
    for row in dead:
        assert row["payload"] == scene.sent[row["partition"], row["offset"]] == b"poison"


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg", "bare iceberg"])
def test_exporters_killed_at_every_step_neither_lose_nor_repeat_a_message(
    kind: str,
    broker: Broker,
    tables: TableOperations,
    exporters: Exporters,
    lake: dict[str, CatalogSetting],
    tmp_path: Path,
) -> None:
    name = f"killed-{kind.replace(' ', '-')}"
    scene = Scene(broker, f"/default/{name}", name)
    scene.register(FIRST)
    tables.enable(scene.topic, settings(kind, tmp_path))
    number = 0
    for step in (*STEPS, *(BARE_STEPS if kind == "bare iceberg" else ())):
        # The first kill comes before anything is in the table: offset 0 is at stake.
        scene.publish(b'{"number": %d}' % number, b"poison", b'{"number": %d}' % (number + 1))
        number += 2
        assert exporters.run(scene.topic, step) == ["killed"], step
        if step == "before commit":
            scene.register(SECOND)
            scene.publish(b'{"number": %d, "note": "new"}' % number)
            number += 1
    # Two at once, each of which dies behind its first commit, if it gets that far.
    scene.publish(b'{"number": %d, "note": null}' % number, b"poison")
    assert "killed" in exporters.run(scene.topic, "after commit", 2)
    scene.publish(b'{"number": %d}' % (number + 1))
    assert exporters.run(scene.topic, "never", 2) == ["done", "done"]
    assert tables.status(scene.topic).lag_rows == 0
    assert tables.verify(scene.topic, content=True).is_exact
    rows = rows_of(kind, tmp_path, lake, "orders")
    check_exact(scene, rows, rows_of(kind, tmp_path, lake, "orders__dlq"))
    assert {row["note"] for row in rows} == {None, "new"}


@pytest.mark.e2e
@pytest.mark.slow
def test_a_lost_cursor_costs_nothing(
    broker: Broker,
    tables: TableOperations,
    exporters: Exporters,
    lake: dict[str, CatalogSetting],
    tmp_path: Path,
) -> None:
    """The broker's cursor only mirrors how far the table is: without it, nothing is repeated."""
    scene = Scene(broker, "/default/forgotten", "forgotten")
    scene.register(FIRST)
    setting = settings("delta", tmp_path)
    tables.enable(scene.topic, setting)
    scene.publish(b'{"number": 1}', b'{"number": 2}')
    assert exporters.run(scene.topic, "never") == ["done"]
    topics = Topics(broker.url)
    held = {
        part: topics.act("cursor.get", topic=part, subscription=setting.hold)["position"]
        for part in scene.parts()
    }
    assert set(held.values()) == {2}
    for part in scene.parts():
        asyncio.run(unsubscribe(broker, part, setting.hold))
    topics.close()
    scene.publish(b'{"number": 3}')
    assert exporters.run(scene.topic, "never") == ["done"]
    check_exact(scene, rows_of("delta", tmp_path, lake, "orders"), [])


async def unsubscribe(broker: Broker, topic: str, subscription: str) -> None:
    async with RawClient(broker.url, broker.admin_url) as client:
        request = admin.SubscriptionRequest(topic=topic, subscription=subscription)
        await client.call(services.UNSUBSCRIBE, request)
