"""A table made anew is what a new table would be, and the old one stays until it is whole."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pydanube.errors import NotSupported
from pydanube.tables.errors import TableOfAnotherShape, TableOfAnotherTopic
from pydanube.tables.export_rules import ExportRules
from pydanube.tables.partitioning import read_partitioning
from pydanube.tables.rebuilding import Rebuilt, rebuild
from tests.support.lake_tables import (
    FORMATS,
    FaultySnapshot,
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
ORDER = {"id": {"type": "integer"}}


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


@pytest.fixture
def schemas() -> SchemaShelf:
    shelf = SchemaShelf()
    shelf.add(1, 1, {**ORDER, "note": {"type": "string"}})
    return shelf


def anew(
    lake: Lake,
    topic: MemoryTopic,
    schemas: SchemaShelf,
    table: Any = None,
    *,
    dry_run: bool = False,
    **rules: Any,
) -> Rebuilt:
    with MemoryToolbox(lake, topic, schemas, table).open() as tools:
        return rebuild(tools, ExportRules(**rules), dry_run=dry_run)


def test_a_column_gets_another_type_and_its_dead_letters_come_back(
    lake: Lake, schemas: SchemaShelf
) -> None:
    topic = MemoryTopic()
    topic.publish({"id": 0, "note": "a"}, b"bad", schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    schemas.add(1, 2, {**ORDER, "note": {"type": "integer"}, "more": {"type": "boolean"}})
    topic.publish({"id": 2, "note": 5}, {"id": 3, "note": 6}, schema=(1, 2))
    export_all(exporter(lake, topic, schemas))
    check_complete(topic, lake, dead=[(TOPIC, at) for at in (1, 2, 3)])
    told = anew(lake, topic, schemas, dry_run=True)
    assert (told.messages, told.rows, told.dead_letters, told.dry_run) == (4, 2, 2, True)
    check_complete(topic, lake, dead=[(TOPIC, at) for at in (1, 2, 3)])
    done = anew(lake, topic, schemas)
    assert (done.messages, done.rows, done.dead_letters) == (4, 2, 2)
    rows = check_complete(topic, lake, dead=[(TOPIC, 0), (TOPIC, 1)])
    assert [row["note"] for row in rows] == [5, 6]
    topic.publish({"id": 4, "note": 7, "more": True}, schema=(1, 2))
    export_all(exporter(lake, topic, schemas))
    rows = check_complete(topic, lake, dead=[(TOPIC, 0), (TOPIC, 1)])
    assert rows[-1]["more"] is True


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_table_that_holds_something_else_is_not_replaced(
    lake: Lake, schemas: SchemaShelf, dry_run: bool
) -> None:
    theirs = MemoryTopic("/default/theirs")
    theirs.publish({"id": 0}, {"id": 1}, schema=(1, 1))
    other = Lake(lake.kind, lake.root, theirs.topic)
    export_all(exporter(other, theirs, schemas))
    topic = MemoryTopic()
    topic.publish({"id": 7}, schema=(1, 1))
    with pytest.raises(TableOfAnotherTopic, match=r"topic /default/theirs.* would lose all"):
        anew(lake, topic, schemas, dry_run=dry_run)
    check_complete(theirs, other)


def test_a_table_of_nobody_is_looked_at_without_a_trace_but_not_replaced(
    lake: Lake, schemas: SchemaShelf
) -> None:
    columns = pa.schema([("id", pa.int64())])
    if lake.is_delta:
        DeltaTable.create(lake.table().name, columns)
    else:
        lake.namespace()
        lake.catalog().create_table(lake.table().name, columns)
    topic = MemoryTopic()
    topic.publish({"id": 7}, schema=(1, 1))
    with pytest.raises(TableOfAnotherTopic, match="rows that came from no topic"):
        anew(lake, topic, schemas)
    lake.table().check()
    with pytest.raises(TableOfAnotherTopic):
        anew(lake, topic, schemas)
    lake.table().load()
    other = Lake(lake.kind, lake.root, "/default/theirs").table()
    with pytest.raises(TableOfAnotherTopic, match="holds topic /default/orders"):
        other.check()


def test_a_topic_created_anew_gets_its_table_back(lake: Lake, schemas: SchemaShelf) -> None:
    topic = MemoryTopic(partitions=1)
    topic.publish(*({"id": number} for number in range(5)), b"bad", schema=(1, 1), partition=0)
    export_all(exporter(lake, topic, schemas))
    topic.recreate()
    topic.publish({"id": 0}, {"id": 1}, schema=(1, 1), partition=0)
    with pytest.raises(TableOfAnotherTopic):
        exporter(lake, topic, schemas).export()
    anew(lake, topic, schemas)
    assert lake.positions()[f"{TOPIC}-part-0"].next == 2
    topic.publish({"id": 2}, schema=(1, 1), partition=0)
    topic.add_partition(1)
    topic.publish({"id": 0}, schema=(1, 1), partition=1)
    export_all(exporter(lake, topic, schemas))
    rows = lake.rows()
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
    ]


@pytest.mark.parametrize("at", ["after write", "before commit", "after commit"])
def test_a_rebuild_may_die_anywhere(lake: Lake, schemas: SchemaShelf, at: str) -> None:
    topic = MemoryTopic()
    topic.publish({"id": 0}, {"id": 1}, b"bad", schema=(1, 1))
    export_all(exporter(lake, topic, schemas))

    class Dying(FaultyTable):
        def blank(self, columns: Any) -> Any:
            return FaultySnapshot(self, self.table.blank(columns))

    with pytest.raises(Killed):
        anew(lake, topic, schemas, Dying(lake.table(), at))
    check_complete(topic, lake, dead=[(TOPIC, 2)])
    topic.publish({"id": 3}, schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    check_complete(topic, lake, dead=[(TOPIC, 2)])
    anew(lake, topic, schemas)
    check_complete(topic, lake, dead=[(TOPIC, 2)])


def test_exporters_go_on_meanwhile(lake: Lake, schemas: SchemaShelf) -> None:
    topic = MemoryTopic()
    topic.publish({"id": 0}, {"id": 1}, schema=(1, 1))
    export_all(exporter(lake, topic, schemas))

    class Outrun(FaultyTable):
        def blank(self, columns: Any) -> Any:
            return FaultySnapshot(self, self.table.blank(columns))

        def kill(self, at: str) -> None:
            if at == "before commit" and self.at == "race":
                self.at = None
                topic.publish({"id": 2}, schema=(1, 1))
                export_all(exporter(lake, topic, schemas))

    done = anew(lake, topic, schemas, Outrun(lake.table(), "race"))
    assert done.messages == 2
    assert lake.positions()[TOPIC].next == 2, "what came meanwhile went with the old rows"
    export_all(exporter(lake, topic, schemas))
    check_complete(topic, lake)


def test_a_table_gets_a_key(lake: Lake, schemas: SchemaShelf) -> None:
    topic = MemoryTopic()
    for number in range(6):
        topic.publish({"id": number}, schema=(1, 1), key=f"k{number % 2}")
    plain, keyed = lake.table(shape="plain"), lake.table(shape="keyed")
    export_all(exporter(lake, topic, schemas, table=plain))
    key = ("routing_key",)
    with pytest.raises(TableOfAnotherShape, match="was made as 'plain'"):
        exporter(lake, topic, schemas, table=keyed, upsert_key=key).export()
    assert anew(lake, topic, schemas, keyed, upsert_key=key).rows == 2
    assert sorted(row["offset"] for row in lake.rows()) == [4, 5]
    with pytest.raises(TableOfAnotherShape, match="was made as 'keyed'"):
        exporter(lake, topic, schemas, table=plain).export()
    topic.publish({"id": 6}, schema=(1, 1), key="k0")
    export_all(exporter(lake, topic, schemas, table=keyed, upsert_key=key))
    assert sorted(row["offset"] for row in lake.rows()) == [5, 6]


def test_partitions_change_where_the_format_can(lake: Lake, schemas: SchemaShelf) -> None:
    topic = MemoryTopic()
    topic.publish(*({"id": number} for number in range(30)), schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    table = lake.table(partitioning=read_partitioning("day(publish_time), bucket(2, id)"))
    if lake.is_delta:
        with pytest.raises(NotSupported, match="another table"):
            anew(lake, topic, schemas, table)
        check_complete(topic, lake)
        return
    anew(lake, topic, schemas, table)
    check_complete(topic, lake)
    topic.publish({"id": 30}, schema=(1, 1))
    export_all(exporter(lake, topic, schemas, table=table))
    check_complete(topic, lake)
    snapshot = table.load()
    assert snapshot is not None
    assert snapshot.facts().files == 6, "five days and buckets that have rows, and one more file"
    spec = lake.catalog().load_table("default.orders").spec()
    assert [str(each.transform) for each in spec.fields] == ["day", "bucket[2]"]
