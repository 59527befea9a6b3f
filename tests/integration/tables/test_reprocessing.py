"""Dead letters come back once, whatever happens on the way; partitions of tables."""

from pathlib import Path

import pytest

from pydanube.runtime.randomness import SystemRandomness
from pydanube.tables.catalogs import Tables
from pydanube.tables.partitioning import read_partitioning
from pydanube.tables.reprocessing import Reprocessed, reprocess
from pydanube.tables.settings import TableSetting
from tests.support.lake_tables import (
    FORMATS,
    FaultyTable,
    Killed,
    Lake,
    MemoryTopic,
    SchemaShelf,
    check_complete,
    export_all,
    exporter,
)

TOPIC = "/default/orders"
SETTING = TableSetting(format="delta", table="/orders")


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


def run(lake: Lake, schemas: SchemaShelf, kill: str | None = None) -> Reprocessed:
    dead = lake.table("orders__dlq")
    tables = Tables(lake.table(), dead if kill is None else FaultyTable(dead, kill))
    return reprocess(tables, SETTING, schemas, SystemRandomness())


def test_dead_letters_that_fit_by_now_come_back_once(lake: Lake) -> None:
    topic, schemas = MemoryTopic(), SchemaShelf()
    schemas.add(1, 1, {"id": {"type": "integer"}})
    topic.publish({"id": 0}, schema=(1, 1))
    topic.publish({"id": 1, "note": "n"}, {"id": 2}, schema=(1, 2))
    topic.publish(b"never", schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    everything = [(TOPIC, 1), (TOPIC, 2), (TOPIC, 3)]
    check_complete(topic, lake, dead=everything)
    assert run(lake, schemas).left == 3
    check_complete(topic, lake, dead=everything)
    schemas.add(1, 2, {"id": {"type": "integer"}, "note": {"type": "string"}})
    with pytest.raises(Killed):
        run(lake, schemas, kill="before remove")
    assert len(lake.rows()) == 3, "the rows are there, and dead letters still"
    done = run(lake, schemas)
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
