"""Executors that die in the middle of a task, and tasks that run twice at once: real processes."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pydanube.pipelines.documents import read_definition
from pydanube.pipelines.sinks.catalog import kind_of
from tests.support import killed_executor
from tests.support.killed_lake_executors import MOMENTS, TRIES
from tests.support.spark_cluster import spark_cluster
from tests.support.spark_topics import Topics, create_partitions

SECONDS_MAX = 600
pytestmark = pytest.mark.timeout(1200)
ROWS = 1500
SOURCE, PARTITIONED = "/default/struck", "/default/struck-parts"

SCENARIOS: dict[str, dict[str, Any]] = {
    "read_executor": {
        "where": "read",
        "strike": "executor",
        "source": PARTITIONED,
        "access": "direct",
    },
    "write_worker": {"where": "write", "strike": "worker", "source": SOURCE},
    "write_twin": {"where": "write", "strike": "twin", "source": SOURCE},
    "stream_read_executor": {
        "where": "read",
        "strike": "executor",
        "source": PARTITIONED,
        "stream": True,
    },
    "stream_write_executor": {
        "where": "write",
        "strike": "executor",
        "source": SOURCE,
        "stream": True,
    },
    "stream_write_twin": {"where": "write", "strike": "twin", "source": SOURCE, "stream": True},
}
READS = ("read_executor",)

LAKE_ROWS = 29
"""Good ones of a partition, behind one that is no JSON; a batch takes 5 of each partition."""
PIPELINE = """\
pipeline: struck
danube: {url: "URL"}
checkpoints: ROOT/checkpoints
trigger: {available_now: true}
on_failure: {restarts: 5, backoff: 10ms}
sources:
  numbers: {topic: TOPIC, options: {maxRowsPerTrigger: 10, pollMs: 1}}
steps:
  - name: flat
    sql: >
      SELECT topic, partition, offset, payload,
      from_json(cast(payload AS string), 'number bigint').number AS n FROM numbers
  - name: valid
    from: flat
    expect: [{name: decoded, check: "n IS NOT NULL", otherwise: dead_letter}]
sinks:
  - {name: delta, from: valid, format: delta, path: ROOT/delta}
  - {name: ice, from: valid, format: iceberg, table: lake.numbers,
     catalog: {type: sql, uri: "sqlite:///ROOT/catalog.db", warehouse: "file://ROOT/ice"}}
dead_letter: {topic: TOPIC-dlq}
"""
LAKE = "/default/struck-lake"


@pytest.fixture(scope="module")
def struck(broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all scenarios in one Spark; return where they left their marks."""
    directory = tmp_path_factory.mktemp("struck")
    topics = Topics(broker.url)
    topics.publish(SOURCE, range(ROWS))
    create_partitions(broker, PARTITIONED, 2)
    for partition in range(2):
        topics.publish(f"{PARTITIONED}-part-{partition}", range(partition, ROWS, 2))
        topics.wait_sealed(f"{PARTITIONED}-part-{partition}")
    create_partitions(broker, LAKE, 2)
    for partition in range(2):
        topics.publish_payloads(f"{LAKE}-part-{partition}", [b"{no json"])
        topics.publish(f"{LAKE}-part-{partition}", range(LAKE_ROWS))
    topics.close()
    pipeline = directory / "struck.yml"
    text = PIPELINE.replace("URL", broker.url).replace("ROOT", str(directory))
    pipeline.write_text(text.replace("TOPIC", LAKE))
    wanted = {
        name: each if name in READS else {**each, "target": f"/default/struck-{name}"}
        for name, each in SCENARIOS.items()
    }
    order = {"url": broker.url, "directory": str(directory), "scenarios": wanted}
    order["pipeline"] = str(pipeline)
    with spark_cluster(directory, ("127.0.0.1", "127.0.0.2")) as master:
        done = subprocess.run(
            [
                *(sys.executable, "-m", killed_executor.__name__),
                json.dumps({**order, "master": master}),
            ],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return directory


@pytest.mark.parametrize("sink", ["delta", "ice"])
def test_a_table_gets_each_row_once_whatever_executors_die(struck: Path, sink: str):
    for moment in MOMENTS:
        kills = TRIES if moment == "after_write" else 1
        assert len(list(struck.glob(f"{sink}.{moment}.?"))) == kills, f"nobody died {moment}"
    definition, _ = read_definition((struck / "struck.yml").read_text(), "struck.yml", {})
    (found,) = [each for each in definition.sinks if each.name == sink]
    lake = kind_of(found).table(found)
    assert lake is not None
    table = lake.rows()
    assert table is not None
    places = Counter((row["partition"], row["offset"], row["n"]) for row in table.to_pylist())
    expected = [(part, n + 1, n) for part in range(2) for n in range(LAKE_ROWS)]
    assert places == dict.fromkeys(expected, 1)


def test_dead_letters_of_batches_that_lost_their_executors_are_there_once(broker, struck: Path):
    topics = Topics(broker.url)
    letters = topics.payloads(f"{LAKE}-dlq")
    topics.close()
    assert letters == [b"{no json"] * 4, "of two partitions by two flows"


@pytest.mark.parametrize("name", READS)
def test_what_a_dead_task_has_read_is_read_again_and_counted_once(struck: Path, name: str):
    assert (struck / f"{name}.mark").exists(), "nobody was killed"
    rows = json.loads((struck / f"{name}.rows").read_text())
    places = {(row["topic"], row["partition"], row["offset"]) for row in rows}
    assert len(rows) == len(places) == ROWS
    expected = {(partition, offset) for partition in range(2) for offset in range(ROWS // 2)}
    assert {(partition, offset) for _, partition, offset in places} == expected


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in READS])
def test_a_topic_gets_each_row_once(broker, topics, struck: Path, name: str):
    assert (struck / f"{name}.mark").exists(), "nothing has happened"
    if SCENARIOS[name]["strike"] == "twin":
        assert (struck / f"{name}.mark.twin").exists(), "the task had no twin"
    assert sorted(topics.numbers(f"/default/struck-{name}")) == list(range(ROWS))
