"""Batch reads against a real broker; planned and read as Spark would, without starting it."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition, LessThan, Not
from pyspark.sql.types import StructType

from pydanube.errors import Corruption, InvalidRequest, NotFound
from pydanube.spark.data_source import batch_reader, schema_of
from pydanube.spark.errors import DataLoss
from pydanube.spark.source import hints
from pydanube.spark.source.batch_reader import FilteringBatchReader
from pydanube.testing.broker import Broker
from tests.support.spark_readers import reader, rows_of
from tests.support.spark_topics import (
    Topics,
    check_rows,
    create_partitions,
    delete_topic,
    numbers_of,
)


@pytest.fixture(autouse=True)
def small_pieces_are_read_directly_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "DIRECT_BYTES_MIN", 0)


@pytest.fixture(scope="module")
def history(broker: Broker) -> str:
    """Three segments of 700 messages and no tail; not to be changed."""
    return fill(broker, "/default/history", 3)


@pytest.fixture
def sealed(broker: Broker, topic: str) -> str:
    """Two segments of 700 messages, to be changed."""
    return fill(broker, topic, 2)


def fill(broker: Broker, topic: str, segments: int) -> str:
    topics = Topics(broker.url)
    for number in range(segments):
        topics.publish(topic, range(700 * number, 700 * number + 700))
        topics.wait_sealed(topic)
    topics.close()
    return topic


def test_every_column_is_what_was_published(broker, topics, topic):
    topics.publish(topic, range(10))
    rows = rows_of(reader(broker, topic=topic))
    check_rows(rows, range(10))
    assert {row["topic"] for row in rows} == {topic}
    assert rows[3]["publish_time"].timestamp() == 3
    assert rows[0]["producer_name"] == "flight"
    assert rows[0]["schema_id"] is None


def test_a_topic_of_one_message_is_read_once(broker, topics, topic):
    topics.publish(topic, [7])
    check_rows(rows_of(reader(broker, topic=topic)), [7])
    topics.wait_sealed(topic)
    check_rows(rows_of(reader(broker, topic=topic, segmentAccess="direct")), [7])


def test_segments_are_opened_without_the_broker(broker, history, monkeypatch):
    read = reader(broker, topic=history)
    planned = read.partitions()
    assert planned[0].task.hints, "the plan names no segments"
    monkeypatch.setattr(
        "pydanube.wire.flight.blocking.BlockingFlight.get",
        lambda *_: pytest.fail("the broker was asked"),
    )
    check_rows(rows_of(read, planned), range(2100))


def test_history_and_tail_are_one(broker, topics, sealed):
    topics.publish(sealed, range(1400, 1450))
    for access in ("auto", "broker", "direct"):
        check_rows(rows_of(reader(broker, topic=sealed, segmentAccess=access)), range(1450))


def test_ranges_at_before_and_behind_the_ends_of_segments_are_exact(broker, topics, history):
    edges = sorted({edge for start, end, _ in topics.segments(history) for edge in (start, end)})
    assert len(edges) > 2
    marks = sorted(
        {mark for edge in edges for mark in (edge - 1, edge, edge + 1)} & set(range(2101))
    )
    for access in ("direct", "broker"):
        for start, end in zip(marks, marks[2:], strict=False):
            read = reader(
                broker,
                topic=history,
                segmentAccess=access,
                startingOffsets=f'{{"{history}": {start}}}',
                endingOffsets=f'{{"{history}": {end}}}',
                minPartitions=2,
            )
            check_rows(rows_of(read), range(start, end), start)


def test_a_tail_that_is_sealed_between_plan_and_read_is_read_all_the_same(broker, topics, topic):
    topics.publish(topic, range(1000))
    read = reader(broker, topic=topic, minPartitions=4)
    planned = read.partitions()
    topics.wait_sealed(topic)
    topics.publish(topic, range(1000, 1100))
    check_rows(rows_of(read, planned), range(1000))


def test_tasks_are_cut_by_offsets_alone(broker, topics, topic):
    topics.publish(topic, range(1000))
    options = {"topic": topic, "minPartitions": 4, "endingOffsets": f'{{"{topic}": 1000}}'}
    before = [each.task.piece for each in reader(broker, **options).partitions()]
    topics.wait_sealed(topic)
    topics.publish(topic, range(1000, 1100))
    after = [each.task.piece for each in reader(broker, **options).partitions()]
    assert before == after
    assert len(before) >= 4


def test_a_segment_that_is_gone_is_looked_for_again(broker, topics, sealed):
    read = reader(broker, topic=sealed)
    planned = read.partitions()
    task = planned[0].task
    lost = task.hints[0]
    renamed = [(lost.key.replace("-0-", "-1-"), lost), *((h.key, h) for h in task.hints[1:])]
    moved = tuple(type(h)(key, h.start, h.end) for key, h in renamed)
    planned[0].task = type(task)(piece=task.piece, hints=moved, store=task.store)
    check_rows(rows_of(read, planned), range(1400))


def segment_path(planned, number: int = 0) -> Path:
    task = planned[0].task
    return Path(task.store.root.removeprefix("file://")) / task.hints[number].key


def test_a_lost_segment_is_an_error_that_names_it(broker, topics, sealed):
    read = reader(broker, topic=sealed, segmentAccess="direct")
    planned = read.partitions()
    lost = planned[0].task.hints[1].key
    segment_path(planned, 1).unlink()
    with pytest.raises(Corruption) as refused:
        rows_of(read, planned)
    assert f"segment {lost} is in the catalogue" in str(refused.value)


def test_the_broker_is_asked_for_a_segment_that_cannot_be_seen_from_here(broker, topics, sealed):
    read = reader(broker, topic=sealed)
    planned = read.partitions()
    segment_path(planned, 1).unlink()
    check_rows(rows_of(read, planned), range(1400))  # It still has the journal.


def test_a_damaged_segment_is_never_skipped(broker, topics, sealed):
    read = reader(broker, topic=sealed, failOnDataLoss="false")
    planned = read.partitions()
    path = segment_path(planned)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(Corruption, match="damaged"):
        rows_of(read, planned)


def test_a_segment_under_another_name_is_noticed(broker, topics, sealed):
    read = reader(broker, topic=sealed)
    planned = read.partitions()
    first, second = segment_path(planned, 0), segment_path(planned, 1)
    os.replace(second, first)
    with pytest.raises(Corruption, match=r"danube.base_offset"):
        rows_of(read, planned)


def test_all_partitions_are_read_under_one_name(broker, topics, topic):
    create_partitions(broker, topic, 3)
    for partition in range(3):
        topics.publish(f"{topic}-part-{partition}", range(partition * 100, partition * 100 + 50))
    rows = rows_of(reader(broker, topic=topic))
    assert {(row["topic"], row["partition"]) for row in rows} == {(topic, n) for n in range(3)}
    for partition in range(3):
        own = [row for row in rows if row["partition"] == partition]
        check_rows(own, range(partition * 100, partition * 100 + 50))


def test_topics_are_chosen_by_list_and_pattern(broker, topics, topic):
    for name in ("eu", "us", "other"):
        topics.publish(f"{topic}-{name}", range(5))
    listed = rows_of(reader(broker, topics=f"{topic}-eu,{topic}-us"))
    matched = rows_of(reader(broker, topicsPattern=f"{topic}-(eu|us)"))
    assert {row["topic"] for row in listed} == {f"{topic}-eu", f"{topic}-us"}
    assert sorted(map(repr, listed)) == sorted(map(repr, matched))
    assert len(listed) == 10


def test_a_range_of_time_is_a_range_of_offsets(broker, topics, topic):
    topics.publish(topic, range(100))
    read = reader(
        broker, topic=topic, startingTimestamp="1970-01-01T00:00:20Z", endingTimestamp="40000"
    )
    check_rows(rows_of(read), range(20, 40), 20)
    later = reader(broker, topic=topic, startingTimestamp="2099-01-01T00:00:00Z")
    assert rows_of(later) == []


def test_a_read_can_begin_where_a_subscription_stands(broker, topics, topic):
    topics.publish(topic, range(30))
    committed = {"topic": topic, "subscription": "jobs", "startingOffsets": "committed"}
    assert len(rows_of(reader(broker, **committed))) == 30
    topics.act("cursor.create", topic=topic, subscription="jobs", position=12)
    check_rows(rows_of(reader(broker, **committed)), range(12, 30), 12)


def test_columns_are_read_as_asked_for(broker, topics, history):
    assert (
        schema_of({"topic": history, "columns": "offset,payload"})
        == "offset bigint, payload binary"
    )
    rows = rows_of(reader(broker, "payload", "offset", topic=history))
    assert list(rows[0]) == ["payload", "offset"]
    assert numbers_of([row["payload"] for row in rows]) == list(range(2100))
    only = rows_of(reader(broker, "offset", "partition", topic=history, segmentAccess="direct"))
    assert [row["offset"] for row in only] == list(range(2100))


def test_filters_are_taken_over_where_they_can_be_applied_exactly(broker, topics, history):
    read = reader(broker, topic=history, pushdown="true")
    assert isinstance(read, FilteringBatchReader)
    given = [
        GreaterThanOrEqual(("offset",), 690),
        LessThan(("offset",), 1410),
        EqualTo(("routing_key",), "key-1"),
        EqualTo(("payload",), b"x"),
        Not(EqualTo(("offset",), 700)),
    ]
    assert list(read.pushFilters(given)) == given[3:]
    rows = rows_of(read)
    expected = [n for n in range(690, 1410) if n % 3 and n % 7 == 1]
    assert [row["offset"] for row in rows] == expected


def test_nothing_is_read_of_topics_a_filter_excludes(broker, topics, topic):
    topics.publish(topic, range(5))
    read = reader(broker, topic=topic, pushdown="true")
    assert isinstance(read, FilteringBatchReader)
    assert list(read.pushFilters([EqualTo(("partition",), 4)])) == []
    assert list(read.partitions()) == []


def test_an_empty_topic_has_no_rows(broker, topics, topic):
    create_partitions(broker, topic, 2)
    read = reader(broker, topic=topic)
    assert list(read.partitions()) == []
    assert list(read.read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"topic": "/default/nowhere"}, NotFound, "there is no topic /default/nowhere"),
        ({"topicsPattern": "/default/nowhere.*"}, NotFound, "no topic matches"),
        ({"topicsPattern": "("}, InvalidRequest, "option topicsPattern"),
        ({"startingOffsets": '{"TOPIC": 11}'}, InvalidRequest, "11 lies beyond"),
        ({"endingOffsets": '{"TOPIC": 11}'}, InvalidRequest, "option endingOffsets"),
        ({"startingOffsets": '{"/default/x": 1}'}, InvalidRequest, "which is not read"),
    ],
)
def test_a_mistake_is_answered_while_planning(broker, topics, topic, options, kind, words):
    topics.publish(topic, range(10))
    options = {name: text.replace("TOPIC", topic) for name, text in options.items()}
    if not {"topic", "topicsPattern"} & options.keys():
        options["topic"] = topic
    with pytest.raises(kind) as refused:
        reader(broker, **options).partitions()
    assert words in str(refused.value)


def test_a_schema_that_messages_do_not_have_is_refused(broker):
    def field(name: str) -> dict[str, object]:
        return {"name": name, "type": "string", "nullable": True, "metadata": {}}

    options = {"url": broker.url, "topic": "/default/x"}
    wrong = StructType.fromJson({"type": "struct", "fields": [field("offset")]})
    with pytest.raises(InvalidRequest, match="offset bigint"):
        batch_reader(options, wrong)
    unknown = StructType.fromJson({"type": "struct", "fields": [field("colour")]})
    with pytest.raises(InvalidRequest, match="colour"):
        batch_reader(options, unknown)


def test_a_topic_that_was_created_anew_is_not_read_from_the_middle(broker, topics, topic):
    topics.publish(topic, range(10))
    read = reader(broker, topic=topic)
    planned = read.partitions()
    delete_topic(broker, topic)
    topics.publish(topic, range(50))
    with pytest.raises(DataLoss, match="failOnDataLoss=false"):
        rows_of(read, planned)


def test_rows_come_as_arrow_batches_of_a_fair_size(broker, topics, topic):
    topics.publish(topic, range(2000), rows_at_once=10)
    read = reader(broker, topic=topic)
    batches = [batch for each in read.partitions() for batch in read.read(each)]
    assert all(isinstance(batch, pa.RecordBatch) for batch in batches)
    assert len(batches) < 5
