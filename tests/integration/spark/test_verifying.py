"""A topic compared with its catalogue and its segments, by real Spark."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from pydanube.spark import verify, verifying
from tests.support.spark_topics import create_partitions


def test_a_whole_topic_is_called_whole(spark, broker, topics, topic):
    create_partitions(broker, topic, 2)
    topics.publish(f"{topic}-part-0", range(900))
    topics.wait_sealed(f"{topic}-part-0")
    topics.publish(f"{topic}-part-0", range(900, 1000))
    found = verify(spark, topic, url=broker.url)
    assert found.is_whole
    first, second = found.partitions
    assert (first.rows, first.frontier, second.rows) == (1000, 1000, 0)
    assert first.sealed_rows >= 900


def test_holes_and_repeats_are_told_to_the_offset(spark, broker, topics, topic, monkeypatch):
    topics.publish(topic, range(300))
    honest = verifying._rows

    def planted(*arguments: Any) -> Any:
        frame = honest(*arguments)
        kept = frame.where("offset NOT BETWEEN 20 AND 29 AND offset NOT IN (0, 290)")
        # In the last block one is missing and one too many: as many rows as there should be.
        return kept.union(frame.where("offset IN (50, 51, 299)"))

    monkeypatch.setattr(verifying, "_rows", planted)
    monkeypatch.setattr(verifying, "BLOCK_ROWS", 64)
    (found,) = verify(spark, topic, url=broker.url).partitions
    assert not found.is_whole
    assert found.missing == [(0, 1), (20, 30), (290, 291)]
    assert found.repeated == [(50, 52), (299, 300)]
    assert found.uncatalogued == []


def test_a_damaged_segment_is_named(spark, broker, topics, topic):
    topics.publish(topic, range(2000))
    key = topics.wait_sealed(topic)[0][2]
    assert key is not None
    path = Path(topics.store(topic).removeprefix("file://")) / key
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(PySparkException, match=key):
        verify(spark, topic, url=broker.url, segmentAccess="direct")
