"""Dead letters come back once, whatever happens on the way; partitions of tables."""

from pathlib import Path
from typing import Any

import pytest

from pydanube.errors import InvalidRequest
from pydanube.tables import reprocessing
from pydanube.tables.crew import HereWorkers
from pydanube.tables.partitioning import read_partitioning
from pydanube.tables.reprocessing import Reprocessed, reprocess
from tests.support.crews import UnsteadyWorkers
from tests.support.lake_tables import (
    FORMATS,
    FaultyTable,
    Killed,
    Lake,
    MemoryToolbox,
    MemoryTopic,
    SchemaShelf,
    check_complete,
    export_all,
    exporter,
)

TOPIC = "/default/orders"


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


def run(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf, kill: str | None = None, **rest: Any
) -> Reprocessed:
    dead = lake.table("orders__dlq")
    dead = dead if kill is None else FaultyTable(dead, kill)
    return reprocess(MemoryToolbox(lake, topic, schemas, dead=dead), HereWorkers(), **rest)


def test_dead_letters_that_fit_by_now_come_back_once(lake: Lake) -> None:
    topic, schemas = MemoryTopic(), SchemaShelf()
    schemas.add(1, 1, {"id": {"type": "integer"}})
    topic.publish({"id": 0}, schema=(1, 1))
    topic.publish({"id": 1, "note": "n"}, {"id": 2}, schema=(1, 2))
    topic.publish(b"never", schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    everything = [(TOPIC, 1), (TOPIC, 2), (TOPIC, 3)]
    check_complete(topic, lake, dead=everything)
    assert run(lake, topic, schemas).left == 3
    check_complete(topic, lake, dead=everything)
    schemas.add(1, 2, {"id": {"type": "integer"}, "note": {"type": "string"}})
    told = run(lake, topic, schemas, dry_run=True)
    assert (told.tried, told.added, told.left) == (3, 2, 1)
    check_complete(topic, lake, dead=everything)
    with pytest.raises(Killed):
        run(lake, topic, schemas, kill="before remove")
    assert len(lake.rows()) == 3, "the rows are there, and dead letters still"
    done = run(lake, topic, schemas)
    assert (done.tried, done.added, done.left) == (3, 0, 1)
    check_complete(topic, lake, dead=[(TOPIC, 3)])
    topic.publish({"id": 4}, schema=(1, 2))
    export_all(exporter(lake, topic, schemas))
    rows = check_complete(topic, lake, dead=[(TOPIC, 3)])
    assert [row["note"] for row in rows] == [None, "n", None, None]


def test_a_table_can_be_cut_by_day_and_column(lake: Lake) -> None:
    topic, schemas = MemoryTopic(), SchemaShelf()
    schemas.add(1, 1, {"region": {"type": "string"}})
    # Messages are an hour apart.
    topic.publish(*({"region": "ab"[number % 2]} for number in range(30)), schema=(1, 1))
    cut = read_partitioning("day(publish_time), region")
    export_all(exporter(lake, topic, schemas, table=lake.table(partitioning=cut)))
    topic.publish({"region": None}, {"region": "a"}, schema=(1, 1))
    export_all(exporter(lake, topic, schemas, table=lake.table(partitioning=cut)))
    check_complete(topic, lake)
    snapshot = lake.table(partitioning=cut).load()
    assert snapshot is not None
    assert snapshot.facts().files == 8, "three days and two regions, then two more files"


def publish(topic: MemoryTopic, *changes: tuple[str, object], version: int = 1) -> None:
    for key, payload in changes:
        topic.publish(payload, schema=(1, version), key=key)


def test_into_a_table_with_a_key_goes_what_nothing_has_overtaken(lake: Lake) -> None:
    topic, schemas = MemoryTopic(), SchemaShelf()
    schemas.add(1, 1, {"id": {"type": "integer"}})
    key = ("routing_key",)
    publish(topic, ("old", {"id": 0}), ("gone", {"id": 1}))
    later = [("new", {"id": 2}), ("old", {"id": 3}), ("over", {"id": 4}), ("gone", {"id": 5})]
    publish(topic, *later, ("twice", {"id": 6}), ("twice", {"id": 7}), version=2)
    publish(topic, ("over", {"id": 8}), ("gone", b""), ("never", b"bad"))
    export_all(exporter(lake, topic, schemas, upsert_key=key))
    assert len(lake.rows("orders__dlq")) == 7
    schemas.add(1, 2, {"id": {"type": "integer"}, "note": {"type": "string"}})
    told = run(lake, topic, schemas, key=key, dry_run=True)
    assert (told.tried, told.added, told.overtaken, told.left) == (7, 3, 3, 1)
    assert len(lake.rows("orders__dlq")) == 7
    with pytest.raises(Killed):
        run(lake, topic, schemas, kill="before remove", key=key)
    done = run(lake, topic, schemas, key=key)
    assert (done.tried, done.added, done.overtaken, done.left) == (7, 3, 3, 1)
    found = {row["routing_key"]: row["offset"] for row in lake.rows()}
    assert found == {"new": 2, "old": 3, "over": 8, "twice": 7}
    assert len(lake.rows()) == 4
    assert [row["offset"] for row in lake.rows("orders__dlq")] == [10]
    publish(topic, ("new", {"id": 11}))
    export_all(exporter(lake, topic, schemas, upsert_key=key))
    assert {row["routing_key"]: row["offset"] for row in lake.rows()} == {**found, "new": 11}


def test_letters_whose_successors_are_gone_stay(lake: Lake) -> None:
    topic, schemas = MemoryTopic(), SchemaShelf()
    schemas.add(1, 1, {"id": {"type": "integer"}})
    publish(topic, ("a", {"id": 0}), version=2)
    publish(topic, ("b", {"id": 1}), ("a", b""))
    export_all(exporter(lake, topic, schemas, upsert_key=("routing_key",)))
    schemas.add(1, 2, {"id": {"type": "integer"}})
    topic.earliest[TOPIC] = 2
    done = run(lake, topic, schemas, key=("routing_key",))
    assert (done.tried, done.added, done.left) == (1, 0, 1)
    assert [row["routing_key"] for row in lake.rows()] == ["b"]


def test_a_condition_chooses_letters(lake: Lake) -> None:
    topic, schemas = MemoryTopic(), SchemaShelf()
    schemas.add(1, 1, {"id": {"type": "integer"}})
    topic.publish(*({"id": number} for number in range(6)), schema=(1, 2))
    export_all(exporter(lake, topic, schemas))
    schemas.add(1, 2, {"id": {"type": "integer"}})
    done = run(lake, topic, schemas, where="offset in (1, 2, 4) and step = 'decode'")
    assert (done.tried, done.added, done.left) == (3, 3, 0)
    check_complete(topic, lake, dead=[(TOPIC, 0), (TOPIC, 3), (TOPIC, 5)])
    assert run(lake, topic, schemas, where="step = 'columns'").tried == 0
    with pytest.raises(InvalidRequest, match="makes no sense"):
        run(lake, topic, schemas, where="nonsense = 1")
    assert run(lake, topic, schemas).added == 3
    check_complete(topic, lake)


def test_letters_ahead_of_the_table_wait_for_it(lake: Lake) -> None:
    topic, schemas = MemoryTopic(), SchemaShelf()
    schemas.add(1, 1, {"id": {"type": "integer"}})
    topic.publish({"id": 0}, b"bad", schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    topic.publish({"id": 2}, schema=(1, 1))
    topic.publish({"id": 3}, schema=(1, 2))
    table = FaultyTable(lake.table(), "before commit")
    with pytest.raises(Killed):
        export_all(exporter(lake, topic, schemas, table=table))
    schemas.add(1, 2, {"id": {"type": "integer"}})
    assert run(lake, topic, schemas).added == 0, "the exporter has not passed them yet"
    export_all(exporter(lake, topic, schemas))
    check_complete(topic, lake, dead=[(TOPIC, 1), (TOPIC, 3)])
    assert run(lake, topic, schemas).added == 1
    check_complete(topic, lake, dead=[(TOPIC, 1)])


def test_workers_try_letters_and_only_one_result_of_each_counts(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reprocessing, "LETTERS_AT_ONCE", 3)
    monkeypatch.setattr(reprocessing, "RUNS_AT_ONCE", 2)
    topic, schemas = MemoryTopic(), SchemaShelf()
    schemas.add(1, 1, {"id": {"type": "integer"}})
    for number in range(24):
        bad = number % 4 == 0
        topic.publish(b"bad" if bad else {"id": number, "n": "x"}, schema=(1, 2))
    topic.publish({"id": 24, "n": 5}, schema=(1, 3))
    export_all(exporter(lake, topic, schemas))
    schemas.add(1, 2, {"id": {"type": "integer"}, "n": {"type": "string"}})
    schemas.add(1, 3, {"id": {"type": "integer"}, "n": {"type": "integer"}})
    workers = UnsteadyWorkers()
    done = reprocess(MemoryToolbox(lake, topic, schemas), workers)
    assert (done.tried, done.added, done.left) == (25, 18, 7)
    assert len(workers.done) > 9
    check_complete(topic, lake, dead=[(TOPIC, at) for at in (0, 4, 8, 12, 16, 20, 24)])


def test_a_table_can_be_cut_by_hash(lake: Lake) -> None:
    topic, schemas = MemoryTopic(), SchemaShelf()
    schemas.add(1, 1, {"id": {"type": "integer"}, "region": {"type": "string"}})
    topic.publish(
        *({"id": number, "region": f"r{number % 5}"} for number in range(30)), schema=(1, 1)
    )
    topic.publish({"id": None, "region": "r1"}, schema=(1, 1))
    cut = read_partitioning("bucket(4, id), day(publish_time)")
    export_all(exporter(lake, topic, schemas, table=lake.table(partitioning=cut)))
    check_complete(topic, lake)
    if not lake.is_delta:
        table = lake.catalog().load_table("default.orders")
        for number in range(30):
            # Files of other buckets are left out, by the hash that Iceberg prescribes.
            scan = table.scan(row_filter=f"id = {number}")
            assert scan.to_arrow().column("id").to_pylist() == [number]
            assert len(list(scan.plan_files())) <= 3
