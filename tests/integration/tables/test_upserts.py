"""Tables with one row per key: the last message wins, an empty payload deletes."""

from pathlib import Path
from typing import Any

import pytest

from pydanube.spark.source.planning import Limits
from tests.support.lake_tables import (
    FORMATS,
    FaultyTable,
    Killed,
    Lake,
    MemoryTopic,
    SchemaShelf,
    export_all,
    exporter,
    race,
)

TOPIC = "/default/orders"
KEY = ("routing_key",)


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


@pytest.fixture
def schemas() -> SchemaShelf:
    shelf = SchemaShelf()
    shelf.add(1, 1, {"id": {"type": "integer"}, "customer": {"type": "string"}})
    return shelf


def publish(topic: MemoryTopic, *changes: tuple[str, int | None]) -> None:
    """Set the value of a key, or delete it."""
    for key, value in changes:
        payload: Any = b"" if value is None else {"id": value, "customer": key}
        topic.publish(payload, schema=(1, 1), key=key)


def state_of(topic: MemoryTopic) -> dict[str, int]:
    """What the table must come to: the last value of each key that is not deleted."""
    found: dict[str, tuple[int, bytes]] = {}
    for offset, message in enumerate(topic.messages[TOPIC]):
        found[message["routing_key"]] = offset, message["payload"]
    return {key: offset for key, (offset, payload) in found.items() if payload}


def check(topic: MemoryTopic, lake: Lake) -> None:
    rows = lake.rows()
    assert sorted(row["routing_key"] for row in rows) == sorted(state_of(topic)), "one row per key"
    assert {row["routing_key"]: row["offset"] for row in rows} == state_of(topic)
    assert lake.positions()[TOPIC].next == len(topic.messages[TOPIC])


def test_the_last_message_of_a_key_wins_and_an_empty_one_deletes(
    lake: Lake, schemas: SchemaShelf
) -> None:
    topic = MemoryTopic()
    publish(topic, ("a", 1), ("b", 1), ("a", 2), ("c", 1))
    export_all(exporter(lake, topic, schemas, upsert_key=KEY))
    check(topic, lake)
    publish(topic, ("b", None), ("c", 2), ("d", 1), ("d", None), ("e", None), ("e", 5))
    export_all(exporter(lake, topic, schemas, upsert_key=KEY))
    check(topic, lake)


def test_ranges_without_effect_move_the_table_on(lake: Lake, schemas: SchemaShelf) -> None:
    topic = MemoryTopic()
    publish(topic, ("a", 1))
    export_all(exporter(lake, topic, schemas, upsert_key=KEY))
    publish(topic, ("nobody", None))
    assert export_all(exporter(lake, topic, schemas, upsert_key=KEY)) == 1
    check(topic, lake)


def test_messages_without_a_key_are_dead_letters(lake: Lake, schemas: SchemaShelf) -> None:
    topic = MemoryTopic()
    topic.publish({"id": 1, "customer": "x"}, b"", schema=(1, 1))
    publish(topic, ("a", 1))
    export_all(exporter(lake, topic, schemas, upsert_key=KEY))
    assert [row["routing_key"] for row in lake.rows()] == ["a"]
    letters = lake.rows("orders__dlq")
    assert [(row["offset"], row["step"]) for row in letters] == [(0, "key"), (1, "key")]


def test_fields_can_be_the_key(lake: Lake, schemas: SchemaShelf) -> None:
    topic = MemoryTopic()
    for number, name in ((1, "x"), (1, "y"), (2, "x"), (1, "x")):
        topic.publish({"id": number, "customer": name}, schema=(1, 1))
    limits = Limits(rows=2)
    export_all(exporter(lake, topic, schemas, upsert_key=("id", "customer"), limits=limits))
    found = {(row["id"], row["customer"]): row["offset"] for row in lake.rows()}
    assert found == {(1, "x"): 3, (1, "y"): 1, (2, "x"): 2}
    assert len(lake.rows()) == 3


@pytest.mark.parametrize("at", ["before commit", "after commit", "lost answer"])
def test_an_exporter_may_die_anywhere(lake: Lake, schemas: SchemaShelf, at: str) -> None:
    topic = MemoryTopic()
    publish(topic, ("a", 1), ("b", 1))
    export_all(exporter(lake, topic, schemas, upsert_key=KEY))
    publish(topic, ("a", 2), ("b", None), ("c", 1))
    try:
        faulty = FaultyTable(lake.table(), at)
        export_all(exporter(lake, topic, schemas, table=faulty, upsert_key=KEY))
    except Killed:
        assert at != "lost answer"
    publish(topic, ("a", 3))
    export_all(exporter(lake, topic, schemas, upsert_key=KEY))
    check(topic, lake)


def test_three_exporters_race_and_the_table_is_exact(lake: Lake, schemas: SchemaShelf) -> None:
    topic = MemoryTopic()
    for number in range(48):
        publish(topic, (f"k{number % 5}", None if number % 11 == 7 else number))
    lake.table().create(schemas.columns())
    rules = {"limits": Limits(rows=8), "upsert_key": KEY}
    race(lambda: export_all(exporter(lake, topic, schemas, **rules)))
    check(topic, lake)
