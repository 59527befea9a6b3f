"""History into a Delta table, by real Spark: interrupted, repeated, raced, refused."""

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pydanube.errors import Conflict, Corruption, InvalidRequest
from pydanube.spark import history, replay, replaying
from pydanube.spark.replaying import Replayed
from tests.support.spark_topics import Topics, create_partitions, delete_topic, numbers_of

COLUMNS = ["topic", "partition", "offset", "publish_time", "payload"]


@pytest.fixture
def orders(broker, topics: Topics, topic: str) -> str:
    """A topic of two partitions with history and a tail; 1400 messages."""
    create_partitions(broker, topic, 2)
    for partition in range(2):
        name = f"{topic}-part-{partition}"
        topics.publish(name, range(partition, 1200, 2))
        topics.wait_sealed(name)
        topics.publish(name, range(1200 + partition, 1400, 2))
    return topic


def held(path: Path) -> list[dict[str, Any]]:
    table = DeltaTable(str(path)).to_pyarrow_table(columns=COLUMNS)
    return sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))


def check(path: Path, topic: str) -> None:
    rows = held(path)
    places = [(row["topic"], row["partition"], row["offset"]) for row in rows]
    assert places == [(topic, partition, offset) for partition in range(2) for offset in range(700)]
    numbers = numbers_of([row["payload"] for row in rows])
    assert numbers == [*range(0, 1400, 2), *range(1, 1400, 2)]
    assert [row["publish_time"].timestamp() for row in rows] == numbers


def test_a_topic_is_in_the_table_once_however_often_it_is_replayed(
    spark, broker, topics, orders, tmp_path
):
    path = tmp_path / "table"
    planned = replay(spark, orders, str(path), commit_rows=500, url=broker.url, dry_run=True)
    assert (planned.rows, planned.steps, planned.steps_done) == (1400, 3, 0)
    assert not path.exists()
    seen: list[Replayed] = []
    done = replay(spark, orders, str(path), commit_rows=500, url=broker.url, progress=seen.append)
    assert (done.rows_added, done.steps_done) == (1400, 3)
    assert [each.steps_done for each in seen] == [1, 2, 3]
    check(path, orders)
    # What is published later is no part of this job.
    topics.publish(f"{orders}-part-0", range(10))
    again = replay(spark, orders, str(path), url=broker.url)
    assert (again.rows_before, again.rows_added) == (1400, 0)
    check(path, orders)
    assert DeltaTable(str(path)).version() == 3


def test_an_interrupted_replay_goes_on_behind_its_last_commit(
    spark, broker, topics, orders, tmp_path
):
    path = tmp_path / "table"

    def interrupt(state: Replayed) -> None:
        if state.steps_done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(spark, orders, str(path), commit_rows=400, url=broker.url, progress=interrupt)
    assert len(held(path)) == 700
    topics.publish(f"{orders}-part-1", range(10))
    done = replay(spark, orders, str(path), url=broker.url)
    assert (done.rows_before, done.rows_added) == (700, 700)
    check(path, orders)


def test_of_two_runs_at_once_one_adds_and_the_other_is_refused(
    spark, broker, topics, orders, tmp_path
):
    path = tmp_path / "table"

    def overtake(state: Replayed) -> None:
        if state.steps_done == 1:
            replay(spark, orders, str(path), url=broker.url)

    with pytest.raises(Conflict, match="another run of it is under way"):
        replay(spark, orders, str(path), commit_rows=700, url=broker.url, progress=overtake)
    check(path, orders)


def test_nothing_is_committed_when_rows_are_missing(
    spark, broker, topics, orders, tmp_path, monkeypatch
):
    def short(*arguments: Any, **options: Any) -> Any:
        return history(*arguments, **options).where("offset != 5")

    monkeypatch.setattr(replaying, "history", short)
    with pytest.raises(Corruption, match=r"1400 messages .* and 1398 were; nothing was committed"):
        replay(spark, orders, str(tmp_path / "table"), url=broker.url)
    assert not DeltaTable.is_deltatable(str(tmp_path / "table"))


def test_a_table_with_other_columns_is_refused_and_stays_as_it_is(
    spark, broker, topics, orders, tmp_path
):
    path = tmp_path / "table"
    replay(spark, orders, str(path), None, None, ["offset", "payload"], url=broker.url)
    with pytest.raises(InvalidRequest, match="has the columns offset, payload"):
        replay(spark, orders, str(path), job="again", url=broker.url)
    assert DeltaTable(str(path)).version() == 1


def test_a_topic_that_was_created_anew_does_not_continue_a_replay(
    spark, broker, topics, topic, tmp_path
):
    topics.publish(topic, range(10))
    replay(spark, topic, str(tmp_path / "table"), url=broker.url)
    delete_topic(broker, topic)
    topics.publish(topic, range(20))
    with pytest.raises(Conflict, match="it was created anew"):
        replay(spark, topic, str(tmp_path / "table"), url=broker.url)
