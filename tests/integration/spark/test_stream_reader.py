"""Streams against a real broker; asked as Spark asks, without starting it."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from pydanube.errors import NotFound
from pydanube.spark.errors import DataLoss
from pydanube.spark.source import hints
from pydanube.spark.source.stream_reader import StreamReader
from tests.support.running_broker import RunningBroker
from tests.support.spark_readers import follower, rows_of
from tests.support.spark_topics import (
    SMALL_SEGMENTS,
    Topics,
    check_rows,
    create_partitions,
    delete_topic,
)

ALL = ReadAllAvailable()


def drain(reader: StreamReader, start: dict, limit=ALL) -> tuple[list[dict], dict]:
    """Run batches as Spark would until there is nothing more; return rows and where it ended."""
    rows: list[dict] = []
    while (end := reader.latestOffset(start, limit)) != start:
        rows += rows_of(reader, reader.partitions(start, end))
        reader.commit(end)
        start = stored(end)
    return rows, start


def stored(offset: dict) -> dict:
    """What Spark hands back: read from its log."""
    return json.loads(json.dumps(offset))


def test_a_stream_reads_everything_once(broker, topics, topic):
    topics.publish(topic, range(1000))
    reader = follower(broker.url, topic=topic, startingOffsets="earliest", pollMs=0)
    rows, end = drain(reader, stored(reader.initialOffset()), ReadMaxRows(170))
    check_rows(rows, range(1000))
    topics.publish(topic, range(1000, 1010))
    more, _ = drain(reader, end)
    check_rows(more, range(1000, 1010), 1000)


def test_nothing_new_is_the_same_offset_to_the_byte(broker, topics, topic):
    topics.publish(topic, range(10))
    reader = follower(broker.url, topic=topic, startingOffsets="earliest", pollMs=1)
    _, end = drain(reader, stored(reader.initialOffset()))
    assert json.dumps(reader.latestOffset(end, ALL)) == json.dumps(end)


def test_a_batch_that_is_run_again_is_the_same_though_everything_around_it_has_changed(
    broker, topics, topic, monkeypatch
):
    monkeypatch.setattr(hints, "DIRECT_BYTES_MIN", 0)
    topics.publish(topic, range(2000))
    first = follower(broker.url, topic=topic, pollMs=0, minPartitions=3, startingOffsets="earliest")
    start = stored(first.initialOffset())
    end = stored(first.latestOffset(start, ALL))
    before = [rows_of(first, [each]) for each in first.partitions(start, end)]
    topics.wait_sealed(topic)
    topics.publish(topic, range(2000, 2500))
    # Another process, other options: tasks hold the same rows.
    again = follower(broker.url, topic=topic, minPartitions=7, maxBytesPerPartition="1k")
    after = [rows_of(again, [each]) for each in again.partitions(start, end)]
    assert after == before
    assert len(before) > 2


def test_the_first_batch_begins_where_it_began_though_spark_asks_again(broker, topics, topic):
    topics.publish(topic, range(10))
    first = follower(broker.url, topic=topic, pollMs=0)
    start = stored(first.initialOffset())
    topics.publish(topic, range(10, 20))
    end = stored(first.latestOffset(start, ALL))
    # The driver dies before the batch is done. Its successor asks for `latest` once more.
    topics.publish(topic, range(20, 30))
    again = follower(broker.url, topic=topic, pollMs=0)
    asked_again = stored(again.initialOffset())
    assert asked_again["next"] == {topic: 30}
    rows = rows_of(again, again.partitions(asked_again, end))
    more, _ = drain(again, end)
    check_rows(rows + more, range(10, 30), 10)


def test_with_a_subscription_latest_is_kept_before_the_first_batch(broker, topics, topic):
    topics.publish(topic, range(10))
    options = {"topic": topic, "subscription": "mirror", "pollMs": 0}
    assert follower(broker.url, **options).initialOffset()["next"] == {topic: 10}
    # Nothing was planned yet, and messages come while the query is down.
    topics.publish(topic, range(10, 20))
    again = follower(broker.url, **options)
    rows, _ = drain(again, stored(again.initialOffset()))
    check_rows(rows, range(10, 20), 10)


def test_progress_shows_at_the_broker_and_the_newest_run_moves_it(broker, topics, topic):
    topics.publish(topic, range(100))
    options = {"topic": topic, "subscription": "mirror", "startingOffsets": "earliest", "pollMs": 0}
    first = follower(broker.url, **options)
    _, end = drain(first, stored(first.initialOffset()), ReadMaxRows(60))
    cursor = topics.act("cursor.get", topic=topic, subscription="mirror")
    assert (cursor["position"], cursor["holds"]) == (100, True)
    assert cursor["ttl_ms"] == 7 * 86_400_000
    second = follower(broker.url, **options)
    topics.publish(topic, range(100, 120))
    _, later = drain(second, end)
    topics.publish(topic, range(120, 130))
    drain(first, later)  # A run that has been replaced goes on; the cursor is not its own.
    assert topics.act("cursor.get", topic=topic, subscription="mirror")["position"] == 120


def test_a_stream_can_leave_retention_alone(broker, topics, topic):
    topics.publish(topic, range(10))
    options = {"topic": topic, "subscription": "weak", "holdRetention": "false", "holdTtl": "1h"}
    follower(broker.url, startingOffsets="earliest", **options).initialOffset()
    cursor = topics.act("cursor.get", topic=topic, subscription="weak")
    assert (cursor["holds"], cursor["ttl_ms"]) == (False, 3_600_000)


def test_limits_are_kept_and_the_smaller_one_wins(broker, topics, topic):
    topics.publish(topic, range(1000))
    reader = follower(
        broker.url, topic=topic, startingOffsets="earliest", maxRowsPerTrigger=100, pollMs=0
    )
    start = stored(reader.initialOffset())
    assert reader.getDefaultReadLimit() == ReadMaxRows(100)
    assert reader.latestOffset(start, ReadMaxRows(100))["next"] == {topic: 100}
    assert reader.latestOffset(start, ReadMaxBytes(1))["next"] == {topic: 1}
    assert reader.latestOffset(start, ALL)["next"] == {topic: 1000}


def test_a_stream_may_wait_for_more_rows_but_not_for_ever(broker, topics, topic):
    topics.publish(topic, range(10))
    patient = follower(
        broker.url, topic=topic, startingOffsets="earliest", minRowsPerTrigger=50, pollMs=1
    )
    start = stored(patient.initialOffset())
    assert patient.latestOffset(start, ALL) == start
    topics.publish(topic, range(10, 60))
    assert patient.latestOffset(start, ALL)["next"] == {topic: 60}
    hasty = follower(
        broker.url,
        topic=topic,
        startingOffsets="earliest",
        minRowsPerTrigger=500,
        maxTriggerDelay="1ms",
        pollMs=5,
    )
    start = stored(hasty.initialOffset())
    hasty.latestOffset(start, ALL)
    assert hasty.latestOffset(start, ALL)["next"] == {topic: 60}


def test_available_now_ends_though_messages_keep_coming(broker, topics, topic):
    topics.publish(topic, range(500))
    reader = follower(broker.url, topic=topic, startingOffsets="earliest", maxRowsPerTrigger=90)
    start = stored(reader.initialOffset())
    reader.prepareForTriggerAvailableNow()
    target = topics.frontier(topic)
    enough = threading.Event()

    def keep_publishing() -> None:
        other = Topics(broker.url)
        number = 500
        while not enough.is_set() and number < 50_000:
            other.publish(topic, range(number, number + 50))
            number += 50
        other.close()

    publishing = threading.Thread(target=keep_publishing)
    publishing.start()
    try:
        rows, end = drain(reader, start, ReadMaxRows(90))
    finally:
        enough.set()
        publishing.join()
    check_rows(rows, range(500))
    assert end["next"] == {topic: target}


def test_lag_is_reported(broker, topics, topic):
    topics.publish(topic, range(10))
    reader = follower(broker.url, topic=topic, startingOffsets="earliest", pollMs=0)
    reader.initialOffset()
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["next"] == {topic: 10}


def test_a_partition_and_a_topic_that_come_later_are_read_from_their_beginning(
    broker, topics, topic
):
    create_partitions(broker, f"{topic}-a", 2)
    topics.publish(f"{topic}-a-part-0", range(10))
    reader = follower(
        broker.url,
        topicsPattern=f"{topic}-.*",
        startingOffsets="latest",
        discoverySeconds=0,
        pollMs=0,
    )
    start = stored(reader.initialOffset())
    topics.publish(f"{topic}-a-part-1", range(5))
    topics.publish(f"{topic}-b", range(7))
    rows, end = drain(reader, start)
    assert {(row["topic"], row["partition"]) for row in rows} == {
        (f"{topic}-a", 1),
        (f"{topic}-b", 0),
    }
    assert len(rows) == 12
    assert end["next"] == {f"{topic}-a-part-0": 10, f"{topic}-a-part-1": 5, f"{topic}-b": 7}


def test_a_stream_of_no_topic_does_not_begin(broker):
    with pytest.raises(NotFound, match="there is no topic /default/nowhere"):
        follower(broker.url, topic="/default/nowhere").initialOffset()


def test_a_topic_created_anew_ends_a_stream_or_is_read_from_its_beginning(broker, topics, topic):
    topics.publish(topic, range(10))
    strict = follower(broker.url, topic=topic, startingOffsets="earliest", pollMs=0)
    _, end = drain(strict, stored(strict.initialOffset()))
    delete_topic(broker, topic)
    topics.publish(topic, range(30))
    with pytest.raises(DataLoss, match="created anew") as loss:
        strict.latestOffset(end, ALL)
    for remedy in ("retention", "new checkpoint", "failOnDataLoss=false"):
        assert remedy in str(loss.value)
    lenient = follower(broker.url, topic=topic, failOnDataLoss="false", pollMs=0)
    rows, _ = drain(lenient, end)
    check_rows(rows, range(30))


def test_a_topic_that_is_gone_ends_a_stream(broker, topics, topic):
    topics.publish(topic, range(10))
    reader = follower(broker.url, topic=topic, startingOffsets="earliest", pollMs=0)
    _, end = drain(reader, stored(reader.initialOffset()))
    delete_topic(broker, topic)
    with pytest.raises(DataLoss, match="the topic is gone"):
        reader.latestOffset(end, ALL)


@pytest.mark.parametrize("held", [False, True], ids=["without a hold", "with a hold"])
async def test_retention_passes_a_stopped_query_unless_it_holds_its_place(tmp_path: Path, held):
    settings = {
        **SMALL_SEGMENTS,
        "policies.retention_bytes": 1,
        "storage.local_retention.check_interval_minutes": 1,
    }
    running = RunningBroker(tmp_path / "data", settings)
    await running.start()
    try:
        url = f"http://127.0.0.1:{running.server.client_port}"
        await asyncio.wait_for(_outlive_retention(running, url, held), 60)
    finally:
        await running.close()


async def _outlive_retention(running: RunningBroker, url: str, held: bool) -> None:
    topic = "/default/orders"
    topics = Topics(url)
    options = {"topic": topic, "startingOffsets": "earliest", "pollMs": 0}
    if held:
        options["subscription"] = "mirror"
    await asyncio.to_thread(topics.publish, topic, range(100))
    reader = follower(url, **options)
    _, end = await asyncio.to_thread(lambda: drain(reader, stored(reader.initialOffset())))
    await asyncio.to_thread(topics.wait_sealed, topic)
    for first in (100, 200):
        await asyncio.to_thread(topics.publish, topic, range(first, first + 100))
        running.clock.advance(2)
        await asyncio.to_thread(topics.wait_sealed, topic)
    running.clock.advance(61)
    log = running.topics.get(topic).log
    assert log is not None
    again = follower(url, **options)
    if held:
        await asyncio.sleep(0.3)  # Nothing is to happen, and there is nothing to wait for.
        assert log.first_offset == 100
        rows, _ = await asyncio.to_thread(drain, again, end)
        check_rows(rows, range(100, 300), 100)
    else:
        await running.until(lambda: log.first_offset > 100)
        with pytest.raises(DataLoss, match="the first is 200"):
            await asyncio.to_thread(again.latestOffset, end, ALL)
        lenient = follower(url, failOnDataLoss="false", **options)
        rows, _ = await asyncio.to_thread(drain, lenient, end)
        check_rows(rows, range(200, 300), 200)
    topics.close()
