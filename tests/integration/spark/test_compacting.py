"""Segments joined by Spark's tasks and swapped by the broker, with everything that can go wrong."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from click.testing import CliRunner
from msgspec import structs
from pyspark import cloudpickle

from pydanube.cli import spark as commands
from pydanube.cli.main import danube
from pydanube.errors import DanubeError, InvalidRequest, Unavailable
from pydanube.model.ids import TopicId
from pydanube.spark import compacting, history
from pydanube.spark.compacting import compact
from pydanube.spark.verifying import verify
from pydanube.storage.segments.encoding import SegmentOrigin
from tests.support import struck_joins
from tests.support.garbled_joins import CHANGES, Change, garbled
from tests.support.spark_topics import Topics, create_partitions

ROWS = 20
"""Of a segment: more bytes than a segment waits for."""


def payloads(segments: int) -> list[bytes]:
    return [b"%d " % number * 1000 for number in range(1000, 1000 + segments * ROWS)]


def in_segments(topics: Topics, topic: str, count: int) -> list[str]:
    """Publish so many segments; return their keys."""
    for number in range(count):
        topics.publish_payloads(topic, payloads(count)[number * ROWS : (number + 1) * ROWS])
        topics.wait_sealed(topic)
    found = [key for _, _, key in topics.segments(topic) if key is not None]
    assert len(found) >= count
    return found


def keys_of(topics: Topics, topic: str) -> list[str]:
    listed = topics.act("segments.list", topic=topic)["topics"][topic]["segments"]
    return [each["key"] for each in listed]


def files_of(topics: Topics, topic: str) -> set[str]:
    root = Path(topics.store(topic).removeprefix("file://"))
    return {str(each.relative_to(root)) for each in (root / topic[1:]).rglob("*.parquet")}


def path_of(topics: Topics, topic: str, key: str) -> Path:
    return Path(topics.store(topic).removeprefix("file://")) / key


def test_small_segments_become_one_and_nobody_notices(spark, broker, topics, topic, monkeypatch):
    before = in_segments(topics, topic, 3)
    # Somebody has planned a read with the old ones, and begins only when they are gone.
    planned = (
        spark.read.format("danube")
        .options(url=broker.url, topic=topic, segmentAccess="direct", minPartitions="3")
        .load()
    )
    rest = planned.toLocalIterator()
    first = next(rest)

    @contextlib.contextmanager
    def shared(*_: Any) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(commands, "_session", shared)
    command = ["spark", "compact", topic, "--service-addr", broker.url, "--output", "json"]
    told = CliRunner().invoke(danube, [*command, "--dry-run"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["runs"] == 1
    assert keys_of(topics, topic) == before
    done = CliRunner().invoke(danube, command)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["joined"], found["into"], found["rows"]) == (len(before), 1, 3 * ROWS)
    (joined,) = keys_of(topics, topic)
    assert files_of(topics, topic) == {joined, *before}, "the old ones stay for readers"
    assert topics.payloads(topic) == payloads(3)
    assert {row["offset"] for row in (first, *rest)} == set(range(3 * ROWS))
    rows = history(spark, topic, url=broker.url).orderBy("offset").collect()
    assert [bytes(row["payload"]) for row in rows] == payloads(3)
    assert verify(spark, topic, url=broker.url, segmentAccess="direct").is_whole
    assert compact(spark, topic, url=broker.url).runs == 0, "done twice, it does nothing"


def test_partitions_are_joined_each_for_itself(spark, broker, topics, topic, monkeypatch):
    monkeypatch.setattr(compacting, "TASKS_AT_ONCE", 1)
    create_partitions(broker, topic, 2)
    for partition in range(2):
        in_segments(topics, f"{topic}-part-{partition}", 2)
    done = compact(spark, topic, url=broker.url)
    assert (done.runs, done.into, done.refused) == (2, 2, [])
    assert done.segments_after == 2
    for partition in range(2):
        assert topics.payloads(f"{topic}-part-{partition}") == payloads(2)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_worker_that_dies_costs_a_try(
    spark, broker, topics, topic, tmp_path, monkeypatch, moment
):

    cloudpickle.register_pickle_by_value(struck_joins)
    in_segments(topics, topic, 2)
    mark = tmp_path / "killed"
    monkeypatch.setattr(
        compacting, "JoinJob", lambda *given: struck_joins.StruckJoins(*given, moment, str(mark))
    )
    assert compact(spark, topic, url=broker.url).into == 1
    assert mark.exists(), "nobody was killed"
    assert topics.payloads(topic) == payloads(2)
    assert verify(spark, topic, url=broker.url, segmentAccess="direct").is_whole


def test_a_job_that_dies_before_the_swap_is_done_again(spark, broker, topics, topic, monkeypatch):
    before = in_segments(topics, topic, 2)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(compacting, "_swap", dies)
        with pytest.raises(KeyboardInterrupt):
            compact(spark, topic, url=broker.url)
    assert keys_of(topics, topic) == before
    assert topics.payloads(topic) == payloads(2)
    assert compact(spark, topic, url=broker.url).into == 1
    assert topics.payloads(topic) == payloads(2)


def test_a_lost_answer_is_asked_for_again(spark, broker, topics, topic, monkeypatch):
    in_segments(topics, topic, 2)
    swap = compacting._swap

    def twice(*given: Any) -> None:
        swap(*given)
        swap(*given)

    monkeypatch.setattr(compacting, "_swap", twice)
    done = compact(spark, topic, url=broker.url)
    assert (done.into, done.refused) == (1, [])
    assert topics.payloads(topic) == payloads(2)


def test_segments_that_changed_meanwhile_stay_apart(spark, broker, topics, topic, monkeypatch):
    in_segments(topics, topic, 3)
    swap = compacting._swap

    def outrun(brokers: Any, task: Any, staged: Any) -> None:
        monkeypatch.setattr(compacting, "_swap", swap)
        # Two fit, the third does not.
        most = 2 * max(each.raw_bytes for each in task.segments) + 1
        assert compact(spark, topic, target_bytes=most, url=broker.url).into == 1
        swap(brokers, task, staged)

    monkeypatch.setattr(compacting, "_swap", outrun)
    done = compact(spark, topic, url=broker.url)
    assert done.into == 0
    assert "have changed since they were listed" in done.refused[0]
    assert topics.payloads(topic) == payloads(3)
    assert not [each for each in files_of(topics, topic) if "joined-" in each]


def test_a_damaged_outcome_changes_nothing(spark, broker, topics, topic, monkeypatch):
    before = in_segments(topics, topic, 2)
    swap = compacting._swap

    def damaged(brokers: Any, task: Any, staged: Any) -> None:
        file = path_of(topics, topic, staged.key)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(bytes(data))
        swap(brokers, task, staged)

    monkeypatch.setattr(compacting, "_swap", damaged)
    done = compact(spark, topic, url=broker.url)
    assert "CRC-32C" in done.refused[0]
    assert keys_of(topics, topic) == before
    assert files_of(topics, topic) == set(before)
    assert topics.payloads(topic) == payloads(2)


def test_messages_that_a_job_has_garbled_are_named_and_change_nothing(
    spark, broker, topics, topic, monkeypatch
):
    for first in (0, 20):
        topics.publish(topic, range(first, first + 20))
        topics.wait_sealed(topic)
    before = keys_of(topics, topic)
    swap = compacting._swap
    for what in ("swapped payloads", "a flipped bit", "a lost key", "lost attributes"):
        columns, change = CHANGES[what]

        def alter(brokers: Any, task: Any, staged: Any, change: Change = change) -> None:
            file = path_of(topics, topic, staged.key)
            origin = SegmentOrigin(
                topic=topic, topic_id=TopicId(int(task.topic_id)), epoch=task.epoch
            )
            data = garbled(file.read_bytes(), origin, 0, 40, 25, change)
            file.write_bytes(data)
            crc32c = google_crc32c.value(data)
            swap(brokers, task, structs.replace(staged, bytes=len(data), crc32c=crc32c))

        monkeypatch.setattr(compacting, "_swap", alter)
        done = compact(spark, topic, url=broker.url)
        assert done.into == 0
        assert f"has another {columns} than in segment {before[1]}" in done.refused[0]
        assert files_of(topics, topic) == set(before) == set(keys_of(topics, topic)), what
    monkeypatch.setattr(compacting, "_swap", swap)
    assert topics.numbers(topic) == [*range(40)]
    assert compact(spark, topic, url=broker.url).into == 1
    assert topics.numbers(topic) == [*range(40)]


def test_a_damaged_segment_is_named_and_stays(spark, broker, topics, topic):
    before = in_segments(topics, topic, 2)
    file = path_of(topics, topic, before[0])
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(Unavailable, match=before[0]):
        compact(spark, topic, url=broker.url)
    assert keys_of(topics, topic) == before
    file.write_bytes(whole)
    assert compact(spark, topic, url=broker.url).into == 1
    assert topics.payloads(topic) == payloads(2)


def test_what_makes_no_sense_is_refused(spark, broker, topics, topic):
    with pytest.raises(DanubeError, match=topic):
        compact(spark, topic, url=broker.url)
    topics.publish(topic, range(1))
    topics.wait_sealed(topic)
    assert compact(spark, topic, url=broker.url).runs == 0, "a segment of one message"
    with pytest.raises(InvalidRequest, match="store"):
        compact(spark, topic, url=broker.url, **{"store.secret": "x"})
