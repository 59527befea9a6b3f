"""Each message once, in the table or among its dead letters, whatever happens on the way.

The tables are real ones on local files; topics are lists, so that faults can be put anywhere.
"""

from pathlib import Path

import pyarrow as pa
import pytest

from pydanube.spark.source.planning import Limits
from pydanube.tables.errors import (
    BadMessage,
    TableDataLoss,
    TableGuardAltered,
    TableOfAnotherTopic,
)
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
    race,
)

TOPIC = "/default/orders"
ORDER = {"id": {"type": "integer"}, "customer": {"type": "string"}}


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


@pytest.fixture
def topic() -> MemoryTopic:
    return MemoryTopic()


@pytest.fixture
def schemas() -> SchemaShelf:
    shelf = SchemaShelf()
    shelf.add(1, 1, ORDER)
    return shelf


def order(number: int) -> dict[str, object]:
    return {"id": number, "customer": f"c{number}"}


def test_a_topic_of_one_message_is_a_table_of_one_row(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    topic.publish(order(0), schema=(1, 1))
    assert export_all(exporter(lake, topic, schemas)) == 1
    (row,) = check_complete(topic, lake)
    assert (row["offset"], row["id"], row["customer"]) == (0, 0, "c0")
    assert lake.positions()[TOPIC].next == 1


def test_an_empty_topic_makes_no_commit(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    assert export_all(exporter(lake, topic, schemas)) == 0
    assert lake.rows() == []
    assert dict(lake.positions()) == {}


def test_payloads_without_a_schema_are_bytes(lake: Lake, topic: MemoryTopic) -> None:
    topic.publish(b"\x00\xff", b"")
    export_all(exporter(lake, topic, SchemaShelf()))
    rows = check_complete(topic, lake)
    assert [row["payload"] for row in rows] == [b"\x00\xff", b""]


@pytest.mark.parametrize(
    "at", ["before write", "after write", "before commit", "after commit", "lost answer"]
)
def test_an_exporter_may_die_anywhere(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf, at: str
) -> None:
    topic.publish(*(order(number) for number in range(10)), schema=(1, 1))
    limits = Limits(rows=10)
    export_all(exporter(lake, topic, schemas, limits=limits))
    topic.publish(*(order(number) for number in range(10, 20)), schema=(1, 1))
    table = FaultyTable(lake.table(), at)
    try:
        export_all(exporter(lake, topic, schemas, table=table, limits=limits))
    except Killed:
        assert at != "lost answer"
    else:
        assert at == "lost answer"
    topic.publish(order(20), schema=(1, 1))
    export_all(exporter(lake, topic, schemas, limits=limits))
    check_complete(topic, lake)


@pytest.mark.parametrize("at", ["after commit", "lost answer"])
def test_dead_letters_are_kept_once_when_the_exporter_dies_behind_them(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf, at: str
) -> None:
    topic.publish(b"{", order(1), schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    topic.publish(order(2), b"nonsense", order(4), schema=(1, 1))
    dead = FaultyTable(lake.table("orders__dlq"), at)
    try:
        export_all(exporter(lake, topic, schemas, dead=dead))
    except Killed:
        assert at == "after commit"
    # What is good by now stays a dead letter: it must not be in both.
    topic.publish(b"also bad", schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    check_complete(topic, lake, dead=[(TOPIC, 0), (TOPIC, 3), (TOPIC, 5)])


def test_three_exporters_race_and_the_table_is_exact(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    for number in range(60):
        topic.publish(b"bad" if number % 17 == 5 else order(number), schema=(1, 1))
    lake.table().create(schemas.columns())

    def export() -> int:
        return export_all(exporter(lake, topic, schemas, limits=Limits(rows=6)))

    assert race(export) == 10
    check_complete(topic, lake, dead=[(TOPIC, at) for at in (5, 22, 39, 56)])


def test_whoever_loses_a_race_leaves_no_file(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    topic.publish(order(0), schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    topic.publish(order(1), schema=(1, 1))

    class Outrun(FaultyTable):
        def kill(self, at: str) -> None:
            if at == "before commit" and self.at == "race":
                self.at = None
                export_all(exporter(lake, topic, schemas))

    export_all(exporter(lake, topic, schemas, table=Outrun(lake.table(), "race")))
    check_complete(topic, lake)
    assert len(lake.data_files()) == 2


def test_a_new_column_comes_with_the_first_row_that_has_it(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    topic.publish(order(0), schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    schemas.add(1, 2, {**ORDER, "note": {"type": "string"}})
    topic.publish(order(1), schema=(1, 1))
    topic.publish({**order(2), "note": "fragile"}, schema=(1, 2))
    topic.publish(order(3), schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    rows = check_complete(topic, lake)
    assert [row["note"] for row in rows] == [None, None, "fragile", None]
    assert [row["schema_version"] for row in rows] == [1, 1, 2, 1]


def test_a_field_within_a_field_can_be_added(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    street = {"type": "object", "properties": {"street": {"type": "string"}}}
    both = {"type": "object", "properties": {**street["properties"], "zip": {"type": "string"}}}
    schemas.add(2, 1, {"to": street})
    topic.publish({"to": {"street": "a"}}, schema=(2, 1))
    export_all(exporter(lake, topic, schemas))
    schemas.add(2, 2, {"to": both})
    topic.publish({"to": {"street": "b", "zip": "1"}}, schema=(2, 2))
    topic.publish({"to": {"street": "c"}}, schema=(2, 1))
    export_all(exporter(lake, topic, schemas))
    found = [row["to"] for row in sorted(lake.rows(), key=lambda row: row["offset"])]
    assert found == [
        {"street": "a", "zip": None},
        {"street": "b", "zip": "1"},
        {"street": "c", "zip": None},
    ]


def test_a_removed_field_becomes_null(lake: Lake, topic: MemoryTopic, schemas: SchemaShelf) -> None:
    topic.publish(order(0), schema=(1, 1))
    schemas.add(1, 2, {"id": {"type": "integer"}})
    topic.publish({"id": 1}, schema=(1, 2))
    export_all(exporter(lake, topic, schemas))
    assert [row["customer"] for row in check_complete(topic, lake)] == ["c0", None]


def test_a_field_of_another_type_is_a_dead_letter(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    topic.publish(order(0), schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    schemas.add(1, 2, {"id": {"type": "string"}, "customer": {"type": "string"}})
    topic.publish({"id": "one", "customer": "c1"}, {"customer": "c2"}, schema=(1, 2))
    export_all(exporter(lake, topic, schemas))
    rows = check_complete(topic, lake, dead=[(TOPIC, 1)])
    assert [row["customer"] for row in rows] == ["c0", "c2"]
    (letter,) = lake.rows("orders__dlq")
    assert letter["step"] == "columns"
    assert "column id of the table is int64" in letter["reason"]


def test_a_field_with_a_name_of_the_envelope_keeps_its_value(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    schemas.add(3, 1, {"offset": {"type": "string"}, "topic": {"type": "integer"}})
    topic.publish({"offset": "mine", "topic": 5}, schema=(3, 1))
    export_all(exporter(lake, topic, schemas))
    (row,) = lake.rows()
    assert (row["offset"], row["payload_offset"], row["payload_topic"]) == (0, "mine", 5)


def test_an_unknown_schema_version_is_a_dead_letter(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    topic.publish(order(0), schema=(1, 1))
    topic.publish(order(1), schema=(9, 9))
    export_all(exporter(lake, topic, schemas))
    check_complete(topic, lake, dead=[(TOPIC, 1)])


def test_a_range_of_dead_letters_alone_moves_the_table_on(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    topic.publish(b"bad", b"worse", schema=(1, 1))
    assert export_all(exporter(lake, topic, schemas)) == 1
    assert lake.positions()[TOPIC].next == 2
    check_complete(topic, lake, dead=[(TOPIC, 0), (TOPIC, 1)])


def test_bad_messages_can_stop_the_table(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    topic.publish(order(0), b"bad", schema=(1, 1))
    with pytest.raises(BadMessage, match="offset 1 does not fit"):
        exporter(lake, topic, schemas, on_bad_message="fail").export()
    assert lake.rows() == []
    assert lake.data_files() == set()


def test_bad_messages_can_be_skipped_and_are_counted(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    topic.publish(order(0), b"bad", order(2), schema=(1, 1))
    done = exporter(lake, topic, schemas, on_bad_message="skip").export()
    assert done is not None
    assert (done.rows, done.skipped, done.dead) == (2, 1, 0)
    assert [row["offset"] for row in lake.rows()] == [0, 2]
    assert lake.rows("orders__dlq") == []


def test_partitions_share_one_table_and_new_ones_enter_at_their_beginning(
    lake: Lake, schemas: SchemaShelf
) -> None:
    topic = MemoryTopic(partitions=2)
    topic.publish(order(0), order(1), schema=(1, 1), partition=0)
    topic.publish(order(2), schema=(1, 1), partition=1)
    assert export_all(exporter(lake, topic, schemas)) == 1
    topic.add_partition(2)
    topic.publish(order(3), schema=(1, 1), partition=2)
    topic.publish(order(4), schema=(1, 1), partition=0)
    assert export_all(exporter(lake, topic, schemas)) == 1
    rows = check_complete(topic, lake)
    assert [(row["partition"], row["offset"]) for row in rows] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (2, 0),
    ]


def test_a_table_can_start_in_the_middle(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    topic.publish(*(order(number) for number in range(5)), schema=(1, 1))
    export_all(exporter(lake, topic, schemas, starts={TOPIC: 3}))
    topic.publish(order(5), schema=(1, 1))
    export_all(exporter(lake, topic, schemas, starts={TOPIC: 3}))
    check_complete(topic, lake, start=3)


def test_a_topic_created_anew_is_refused(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    topic.publish(order(0), order(1), schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    topic.recreate()
    topic.publish(*(order(number) for number in range(5)), schema=(1, 1))
    with pytest.raises(TableOfAnotherTopic, match="created anew"):
        exporter(lake, topic, schemas).export()
    assert len(lake.rows()) == 2


def test_offsets_that_are_gone_are_refused(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    topic.publish(order(0), schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    topic.publish(order(1), order(2), schema=(1, 1))
    topic.earliest[TOPIC] = 2
    with pytest.raises(TableDataLoss, match="lacks offsets 1 to before 2"):
        exporter(lake, topic, schemas).export()


def test_a_table_of_another_topic_is_refused(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    topic.publish(order(0), schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    other = Lake(lake.kind, lake.root, "/default/others")
    with pytest.raises(TableOfAnotherTopic, match="holds topic /default/orders"):
        exporter(other, MemoryTopic("/default/others"), schemas).export()


def test_altered_guards_are_refused(lake: Lake, topic: MemoryTopic, schemas: SchemaShelf) -> None:
    topic.publish(order(0), schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    if lake.is_delta:
        from deltalake import DeltaTable

        DeltaTable(str(lake.root / "orders")).alter.set_table_properties(
            {"delta.setTransactionRetentionDuration": "interval 1 day"}, raise_if_not_exists=False
        )
    else:
        with lake.catalog().load_table("default.orders").transaction() as changing:
            changing.set_properties({"commit.retry.num-retries": "4"})
    topic.publish(order(1), schema=(1, 1))
    with pytest.raises(TableGuardAltered, match="nothing was written"):
        exporter(lake, topic, schemas).export()
    assert len(lake.data_files()) == 1


def test_a_table_made_by_somebody_else_is_taken_if_its_columns_fit(
    lake: Lake, topic: MemoryTopic, schemas: SchemaShelf
) -> None:
    columns = pa.schema([("offset", pa.int64()), ("extra", pa.string()), ("id", pa.int64())])
    misfit = pa.schema([("offset", pa.string())])
    topic.publish(order(0), schema=(1, 1))
    if lake.is_delta:
        from deltalake import DeltaTable

        DeltaTable.create(str(lake.root / "orders"), schema=columns)
        DeltaTable.create(str(lake.root / "misfit"), schema=misfit)
    else:
        lake.namespace()
        lake.catalog().create_table("default.orders", schema=columns)
        lake.catalog().create_table("default.misfit", schema=misfit)
    export_all(exporter(lake, topic, schemas))
    topic.publish(order(1), schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    rows = check_complete(topic, lake)
    assert [row["extra"] for row in rows] == [None, None]
    with pytest.raises(TableOfAnotherTopic, match="column offset of the table is string"):
        exporter(lake, topic, schemas, table=lake.table("misfit")).export()
