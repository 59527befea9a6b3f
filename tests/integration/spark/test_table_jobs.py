"""What is large is done by Spark's executors: tables filled, checked, joined and mended."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import pydanube
from pydanube.tables.catalog_settings import CatalogSetting
from pydanube.tables.crew import Crew
from pydanube.tables.exporter import Exporter
from pydanube.tables.opening import surroundings_of
from pydanube.tables.operations import TableOperations
from pydanube.tables.service import Progress
from pydanube.tables.settings import TableSetting
from pydanube.tables.spark_workers import SparkWorkers
from pydanube.testing.broker import Broker
from tests.support import killed_worker
from tests.support.spark_topics import Topics, create_partitions

ROWS = 60
SUBJECT = {"type": "object", "properties": {"number": {"type": "integer"}}}


def settings(root: Path) -> dict[str, TableSetting]:
    return {
        "delta": TableSetting(format="delta", table=f"{root}/orders"),
        "iceberg": TableSetting(format="iceberg", table="default.orders", catalog="lake"),
    }


class Jobs:
    """Tables whose work is Spark's, in tasks of a few rows each."""

    def __init__(self, given: Any, root: Path) -> None:
        self.given = given
        self.operations = TableOperations(given)
        self.root = root
        self.progress: list[Progress] = []

    def backfill(self, topic: str) -> None:
        self.operations.backfill(topic, report=self.progress.append)


@pytest.fixture
def jobs(broker: Broker, spark: Any, tmp_path: Path) -> Iterator[Jobs]:
    properties = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/lake"}
    catalogs = {"lake": CatalogSetting(type="sql", properties=properties)}
    crew = Crew(workers=SparkWorkers(spark), bytes_min=1, task_bytes=1_000)
    with surroundings_of(broker.url, catalogs, crew) as given:
        yield Jobs(given, tmp_path)


async def bind_schema(url: str, topic: str, subject: str) -> None:
    async with pydanube.connect(url) as client:
        await client.schemas.register(subject, json.dumps(SUBJECT))
        await client.schemas.configure_topic(topic, subject, policy="none")


async def send(url: str, topic: str, payload: bytes) -> None:
    async with pydanube.connect(url) as client, client.producer(topic) as producer:
        await producer.send(payload)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_executors_fill_check_join_and_mend_a_table(
    broker: Broker, topics: Topics, topic: str, jobs: Jobs, kind: str
) -> None:
    create_partitions(broker, topic, 2)
    parts = [f"{topic}-part-0", f"{topic}-part-1"]
    topics.publish(parts[0], range(ROWS))
    topics.publish(parts[1], range(1))
    for part in parts:
        asyncio.run(send(broker.url, part, b"poison"))
    asyncio.run(bind_schema(broker.url, topic, f"jobs-{kind}"))
    jobs.operations.enable(topic, settings(jobs.root)[kind])
    jobs.backfill(topic)
    (done,) = [each.done for each in jobs.progress if each.done is not None]
    assert done.pieces > 3
    assert (done.messages, done.rows, done.dead) == (ROWS + 3, ROWS + 1, 2)
    verdict = jobs.operations.verify(topic, content=True)
    assert verdict.is_exact, verdict
    assert (verdict.rows, verdict.dead_letters, verdict.compared) == (ROWS + 1, 2, ROWS + 3)
    assert jobs.operations.status(topic).next_offsets == dict(
        zip(parts, [ROWS + 1, 2], strict=True)
    )
    joined = jobs.operations.compact(topic)
    assert [each.files_after for each in joined] == [1, 1]
    assert jobs.operations.reprocess(topic).left == 2
    assert jobs.operations.status(topic).dead_letters == 2


@pytest.mark.parametrize("step", ["before write", "after write"])
def test_a_killed_executor_costs_a_try_and_no_row(
    topics: Topics, topic: str, jobs: Jobs, step: str, tmp_path: Path
) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(killed_worker)
    topics.publish(topic, range(ROWS))
    setting = settings(jobs.root)["delta"]
    jobs.operations.enable(topic, setting)
    toolbox = jobs.given.toolbox_of(topic, setting)
    marker = tmp_path / "killed"
    killing = killed_worker.KillingToolbox(toolbox, step, str(marker))
    with toolbox.open() as tools:
        done = Exporter(tools, setting.rules(), jobs.given.crew, killing).export()
    assert marker.exists(), "a worker was killed"
    assert done is not None
    assert done.rows == ROWS
    verdict = jobs.operations.verify(topic, content=True)
    assert verdict.is_exact
    assert verdict.rows == ROWS


def test_a_job_that_cannot_succeed_says_why_and_leaves_the_table_alone(
    topics: Topics, topic: str, jobs: Jobs
) -> None:
    topics.publish(topic, range(ROWS))
    setting = settings(jobs.root)["delta"]
    jobs.operations.enable(topic, setting)
    toolbox = jobs.given.toolbox_of(topic, setting)
    elsewhere = structs.replace(toolbox.setting, table="/proc/nowhere")
    broken = structs.replace(toolbox, setting=elsewhere)
    crew = structs.replace(jobs.given.crew, task_bytes=1_000_000)
    with toolbox.open() as tools, pytest.raises(pydanube.errors.Unavailable, match="nowhere"):
        Exporter(tools, setting.rules(), crew, broken).export()
    assert jobs.operations.status(topic).lag_rows == ROWS
