"""A topic as one frame: table and live tail, every message once."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import pydanube
from pydanube.spark import table
from pydanube.tables.catalog_settings import CatalogSetting
from pydanube.tables.opening import open_tables_of
from pydanube.tables.settings import TableSetting
from pydanube.testing.broker import Broker
from tests.support.spark_topics import Topics


def lake(kind: str, root: Path) -> dict[str, CatalogSetting]:
    if kind == "none":
        return {"lake": CatalogSetting(type="none", properties={"warehouse": f"{root}/bare"})}
    properties = {"uri": f"sqlite:///{root}/c.db", "warehouse": f"file://{root}/warehouse"}
    return {"lake": CatalogSetting(type="sql", properties=properties)}


@pytest.mark.parametrize("kind", ["sql", "none"])
def test_a_table_and_its_tail_are_every_message_once(
    broker: Broker, topics: Topics, topic: str, spark: Any, tmp_path: Path, kind: str
) -> None:
    catalogs = lake(kind, tmp_path)
    topics.publish(topic, range(20))
    with open_tables_of(broker.url, catalogs) as tables:
        tables.enable(topic, TableSetting(format="iceberg", table="default.t", catalog="lake"))
        tables.backfill(topic, report=lambda progress: None)
        topics.publish(topic, range(20, 25))
        frame = table(spark, topic, url=broker.url, catalogs=catalogs)
        # What the table gets from here on is not the frame's: it keeps the table it was made of.
        tables.backfill(topic, report=lambda progress: None)
        rows = frame.select("offset", "payload", "routing_key", "attributes").collect()
        assert sorted(row.offset for row in rows) == list(range(25))
        assert sorted(json.loads(row.payload)["number"] for row in rows) == list(range(25))
        # No attributes are an empty map, in the table and in the tail.
        assert {row.offset: row.attributes for row in rows} == {
            offset: {"n": str(offset)} if offset % 2 else {} for offset in range(25)
        }
        tables.disable(topic)


async def publish_keys(url: str, topic: str, *changes: tuple[str, bytes]) -> None:
    async with pydanube.connect(url) as client:
        definition = {"type": "object", "properties": {"v": {"type": "integer"}}}
        await client.schemas.register("union-keys", json.dumps(definition))
        async with client.producer(topic) as producer:
            for key, payload in changes:
                await producer.send(payload, routing_key=key)
        await client.schemas.configure_topic(topic, "union-keys", policy="none")


def test_of_a_table_with_a_key_the_tail_wins(
    broker: Broker, topic: str, spark: Any, tmp_path: Path
) -> None:
    setting = TableSetting(
        format="delta", table=f"{tmp_path}/keys", mode="upsert", key=("routing_key",)
    )
    changes = [("a", b'{"v": 1}'), ("b", b'{"v": 1}'), ("c", b'{"v": 1}')]
    asyncio.run(publish_keys(broker.url, topic, *changes))
    with open_tables_of(broker.url) as tables:
        tables.enable(topic, setting)
        tables.backfill(topic, report=lambda progress: None)
        later = [("a", b'{"v": 2}'), ("b", b""), ("d", b'{"v": 4}'), ("a", b'{"v": 3}')]
        asyncio.run(publish_keys(broker.url, topic, *later))
        frame = table(spark, topic, url=broker.url)
        found = sorted((row.routing_key, row.v) for row in frame.collect())
        assert found == [("a", 3), ("c", 1), ("d", 4)]
        tables.disable(topic)
