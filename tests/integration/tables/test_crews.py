"""A range that many hands write is committed as one: each message once, in the right columns."""

import threading
from pathlib import Path

import pytest

from pydanube.tables.errors import BadMessage
from tests.support.crews import UnsteadyWorkers, crew_of
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
ORDER = {"id": {"type": "integer"}, "customer": {"type": "string"}}


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


@pytest.fixture
def schemas() -> SchemaShelf:
    shelf = SchemaShelf()
    shelf.add(1, 1, ORDER)
    return shelf


def order(number: int) -> dict[str, object]:
    return {"id": number, "customer": f"c{number}"}


def test_pieces_are_one_commit_whoever_did_them_and_how_often(
    lake: Lake, schemas: SchemaShelf
) -> None:
    topic = MemoryTopic(partitions=2)
    topic.publish(*(order(number) for number in range(20)), schema=(1, 1), partition=0)
    topic.publish(order(0), schema=(1, 1), partition=1)
    workers = UnsteadyWorkers()
    running = exporter(lake, topic, schemas, crew=crew_of(workers))
    done = running.export()
    assert done is not None
    assert (done.messages, done.rows, done.pieces) == (21, 21, 8)
    assert len(workers.done) > 8, "some pieces were done twice"
    assert running.export() is None
    check_complete(topic, lake)


@pytest.mark.parametrize("at", ["before write", "after write", "before commit", "after commit"])
def test_a_job_may_die_anywhere(lake: Lake, schemas: SchemaShelf, at: str) -> None:
    topic = MemoryTopic()
    topic.publish(*(order(number) for number in range(9)), b"bad", schema=(1, 1))
    crew = crew_of(UnsteadyWorkers())
    table = FaultyTable(lake.table(), at)
    lake.table().create(schemas.columns())
    with pytest.raises(Killed):
        export_all(exporter(lake, topic, schemas, table=table, crew=crew))
    topic.publish(order(10), schema=(1, 1))
    export_all(exporter(lake, topic, schemas, crew=crew))
    check_complete(topic, lake, dead=[(TOPIC, 9)])


def test_jobs_race_and_the_table_is_exact(lake: Lake, schemas: SchemaShelf) -> None:
    topic = MemoryTopic()
    for number in range(40):
        topic.publish(b"bad" if number % 17 == 5 else order(number), schema=(1, 1))
    lake.table().create(schemas.columns())
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            crew = crew_of(UnsteadyWorkers(seed), commit_rows=10)
            export_all(exporter(lake, topic, schemas, crew=crew))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    check_complete(topic, lake, dead=[(TOPIC, 5), (TOPIC, 22), (TOPIC, 39)])


@pytest.mark.parametrize("when", ["before", "after"])
def test_whoever_loses_a_race_leaves_no_file(lake: Lake, schemas: SchemaShelf, when: str) -> None:
    topic = MemoryTopic()
    topic.publish(order(0), schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    topic.publish(order(1), b"bad", schema=(1, 1))
    # A twin of a task leaves its files behind, as a killed one does; there is none here.
    workers = UnsteadyWorkers()

    def outrun(*_: object) -> None:
        workers.before, workers.after = lambda task: None, lambda: None
        export_all(exporter(lake, topic, schemas))

    setattr(workers, when, outrun)
    export_all(exporter(lake, topic, schemas, crew=crew_of(workers)))
    check_complete(topic, lake, dead=[(TOPIC, 2)])
    assert len(lake.data_files()) == 3


def test_the_first_piece_decides_the_type_of_a_new_column(lake: Lake, schemas: SchemaShelf) -> None:
    topic = MemoryTopic()
    schemas.add(1, 2, {**ORDER, "note": {"type": "string"}})
    schemas.add(1, 3, {**ORDER, "note": {"type": "integer"}, "extra": {"type": "boolean"}})
    schemas.add(1, 1, ORDER)
    topic.publish(*(order(number) for number in range(3)), schema=(1, 1))
    topic.publish(*({**order(number), "note": "n"} for number in range(3, 6)), schema=(1, 2))
    topic.publish({**order(6), "note": 5}, order(7), schema=(1, 3))
    topic.publish({**order(8), "extra": True}, schema=(1, 3))
    lake.table().create(schemas.columns())
    assert export_all(exporter(lake, topic, schemas, crew=crew_of(UnsteadyWorkers()))) == 1
    rows = check_complete(topic, lake, dead=[(TOPIC, 6)])
    assert [row["note"] for row in rows] == [None] * 3 + ["n"] * 3 + [None] * 2
    assert [row["extra"] for row in rows][-2:] == [None, True]
    (letter,) = lake.rows("orders__dlq")
    assert letter["step"] == "columns"


def test_bad_messages_can_stop_the_job_and_nothing_is_left(
    lake: Lake, schemas: SchemaShelf
) -> None:
    topic = MemoryTopic()
    topic.publish(*(order(number) for number in range(4)), b"bad", schema=(1, 1))

    class Steady(UnsteadyWorkers):
        def run(self, work, tasks, kind):
            return [work(task) for task in tasks]

    running = exporter(lake, topic, schemas, crew=crew_of(Steady()), on_bad_message="fail")
    with pytest.raises(BadMessage, match="offset 4 does not fit"):
        running.export()
    assert lake.rows() == []
    assert lake.data_files() == set()


def test_small_ranges_and_tables_with_a_key_stay_here(lake: Lake, schemas: SchemaShelf) -> None:
    topic = MemoryTopic()
    topic.publish(order(0), schema=(1, 1), key="a")
    workers = UnsteadyWorkers()
    large = crew_of(workers).__class__(workers=workers, bytes_min=101)
    assert export_all(exporter(lake, topic, schemas, crew=large)) == 1
    topic.publish(*(order(number) for number in range(1, 9)), schema=(1, 1), key="a")
    other = Lake(lake.kind, lake.root / "other")
    other.root.mkdir()
    keyed = exporter(other, topic, schemas, crew=crew_of(workers), upsert_key=("routing_key",))
    assert export_all(keyed) == 1
    assert workers.done == []
    assert export_all(exporter(lake, topic, schemas, crew=large)) == 1
    assert workers.done
    check_complete(topic, lake)
