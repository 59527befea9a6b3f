"""Spark over a cluster: one broker's address is enough, wherever topics are and go."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pydanube.model.names import partition_name
from pydanube.runtime.loop_thread import LoopThread
from tests.support.broker_cluster import BrokerCluster
from tests.support.spark_topics import numbers_of

SOURCE, TARGET = "/default/cluster-source", "/default/cluster-target"


class ClusterBeside:
    """Three brokers on an event loop of their own, each with one partition of every topic."""

    def __init__(self, directory: Path) -> None:
        self._thread = LoopThread("cluster")
        self._cluster = self._thread.call(self._open(directory))
        self.url = self._cluster.brokers[0].url

    async def _open(self, directory: Path) -> BrokerCluster:
        cluster = BrokerCluster(directory, 3)
        await cluster.start()
        for topic in (SOURCE, TARGET):
            await cluster.client(cluster.brokers[0]).create_partitioned(topic, 3)
            for number, broker in enumerate(cluster.brokers):
                await cluster.move(partition_name(topic, number), broker)
        return cluster

    def rotate(self, topic: str) -> None:
        """Move every partition to the next broker."""
        self._thread.call(self._rotate(topic))

    async def _rotate(self, topic: str) -> None:
        brokers = self._cluster.brokers
        for number in range(3):
            name = partition_name(topic, number)
            at = brokers.index(await self._cluster.owned(name))
            await self._cluster.move(name, brokers[(at + 1) % 3])

    def close(self) -> None:
        try:
            self._thread.call(self._cluster.close())
        finally:
            self._thread.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterBeside]:
    cluster = ClusterBeside(tmp_path)
    yield cluster
    cluster.close()


def write(spark: Any, cluster: ClusterBeside, first: int, end: int) -> None:
    frame = spark.range(first, end, 1, 2).selectExpr(
        """encode('{"number": ' || id || '}', 'utf-8') AS payload""",
        "'key-' || id % 7 AS routing_key",
    )
    frame.write.format("danube").options(url=cluster.url, topic=SOURCE).mode("append").save()


def read(spark: Any, cluster: ClusterBeside, topic: str) -> list[tuple[int, int]]:
    """Return partition and number of every message, in the order of the numbers."""
    frame = spark.read.format("danube").options(url=cluster.url, topic=topic).load()
    rows = frame.select("partition", "payload").collect()
    numbers = numbers_of([bytes(row.payload) for row in rows])
    return sorted(zip(numbers, (row.partition for row in rows), strict=True))


def test_topics_are_read_written_and_followed_while_they_move(spark, cluster, tmp_path):
    write(spark, cluster, 0, 600)
    query = (
        spark.readStream.format("danube")
        .options(url=cluster.url, topic=SOURCE, startingOffsets="earliest", pollMs=50)
        .option("maxRowsPerTrigger", 300)
        .load()
        .select("payload", "routing_key")
        .writeStream.format("danube")
        .options(url=cluster.url, topic=TARGET, batchRows=20)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        cluster.rotate(SOURCE)
        cluster.rotate(TARGET)
        write(spark, cluster, 600, 800)
        cluster.rotate(SOURCE)
        query.processAllAvailable()
    finally:
        query.stop()
    target = read(spark, cluster, TARGET)
    assert [number for number, _ in target] == list(range(800))
    # Keys decide about the partition, so it is the same in both topics.
    assert {partition for _, partition in target} == {0, 1, 2}
    assert read(spark, cluster, SOURCE) == target
