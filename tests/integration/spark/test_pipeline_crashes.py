"""A pipeline into a topic, a Delta and an Iceberg table, killed at every step: each row once.

One story: a partitioned topic with poison in it; four drivers, each of which goes on from the one
before and is killed at another moment, all three flows at that moment; then a column is added, and
at last the checkpoints are lost.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest
from msgspec import structs

from pydanube.pipelines.checks import Beginning
from pydanube.pipelines.control import statuses
from pydanube.pipelines.definitions import PipelineDefinition
from pydanube.pipelines.documents import read_definition
from pydanube.pipelines.errors import FlowRefused
from pydanube.pipelines.graph import check_graph
from pydanube.pipelines.planning import plan_pipeline
from pydanube.pipelines.runner import PipelineRun, check_outcome
from pydanube.pipelines.sinks.catalog import kind_of
from tests.support import killed_pipeline
from tests.support.spark_topics import Topics, create_partitions, payload

TOPIC = "/default/crashes"
PARTITIONS = 2
ROWS = 200
"""Of a partition, at first; a batch takes 40 of each."""
KILL_SECONDS_MAX = 280

FILE = """\
pipeline: crashes
danube: {url: "URL"}
spark:
  master: "local[2,4]"
  conf:
    spark.sql.shuffle.partitions: 2
    spark.ui.enabled: false
    spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
checkpoints: ROOT/checkpoints
trigger: {available_now: true}
on_failure: {restarts: 5}
sources:
  numbers: {topic: TOPIC, options: {maxRowsPerTrigger: 80, pollMs: 1}}
steps:
  - name: flat
    sql: >
      SELECT topic, partition, offset, payload,
      map('place', concat_ws(':', partition, offset)) AS attributes,
      from_json(cast(payload AS string), 'number bigint').number AS n FROM numbers
  - name: valid
    from: flat
    expect: [{name: decoded, check: "n IS NOT NULL", otherwise: dead_letter}]
  - {name: rows, sql: "SELECT topic, partition, offset, payload, n FROM valid"}
  - {name: messages, sql: "SELECT payload, attributes FROM valid"}
sinks:
  - {name: copy, from: messages, format: danube, topic: TOPIC-copy, options: {batchRows: 10}}
  - {name: delta, from: rows, format: delta, path: ROOT/delta}
  - {name: ice, from: rows, format: iceberg, table: lake.numbers,
     catalog: {type: sql, uri: "sqlite:///ROOT/catalog.db", warehouse: "file://ROOT/ice"}}
dead_letter: {topic: TOPIC-dlq}
"""


class Story:
    """The pipeline, and what was acknowledged: the numbers of good rows by place."""

    def __init__(self, root: Path, topics: Topics) -> None:
        self.root = root
        self.topics = topics
        text = FILE.replace("URL", topics.url).replace("ROOT", str(root)).replace("TOPIC", TOPIC)
        self.file = root / "crashes.yml"
        self.file.write_text(text)
        self.good: dict[tuple[int, int], int] = {}
        self.dead: list[tuple[int, int]] = []
        self._next = dict.fromkeys(range(PARTITIONS), 0)

    def publish(self, rows: int) -> None:
        for partition in range(PARTITIONS):
            physical = f"{TOPIC}-part-{partition}"
            first = self._next[partition]
            self.topics.publish(physical, range(first, first + rows))
            self.good |= {(partition, n): n for n in range(first, first + rows)}
            self._next[partition] += rows

    def publish_poison(self) -> None:
        for partition in range(PARTITIONS):
            self.topics.publish_payloads(f"{TOPIC}-part-{partition}", [b"{no json", b""])
            first = self._next[partition]
            self.dead += [(partition, first), (partition, first + 1)]
            self._next[partition] += 2

    def definition(self) -> PipelineDefinition:
        definition, places = read_definition(self.file.read_text(), str(self.file), {})
        check_graph(definition, places)
        return definition

    def kill(self, moment: str, batch: int) -> None:
        command = [sys.executable, "-m", killed_pipeline.__name__, str(self.file)]
        log = self.root / f"{moment}.log"
        # Not a pipe: Spark's workers outlive the driver for a moment, and would hold it open.
        with log.open("wb") as out:
            killed = subprocess.run(
                [*command, json.dumps({"moment": moment, "batch": batch})],
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.getcwd()])},
                timeout=KILL_SECONDS_MAX,
                check=False,
            )
        assert killed.returncode == -9, log.read_text()[-5000:]
        found = statuses(str(self.root / "checkpoints"))
        assert {each.state for each in found} == {"STOPPED"}

    def run(self, spark: Any, **options: Any) -> None:
        check_outcome(PipelineRun(self.definition(), spark, **options).run())

    def table_rows(self, sink: str) -> list[dict[str, Any]]:
        (found,) = [each for each in self.definition().sinks if each.name == sink]
        lake = kind_of(found).table(found)
        assert lake is not None
        table = lake.rows()
        assert table is not None
        return table.to_pylist()

    def messages(self, topic: str) -> list[dict[str, Any]]:
        reader = self.topics._client.do_get(flight.Ticket(topic.encode()))
        return reader.read_all().to_pylist()

    def check(self) -> None:
        """The law: every acknowledged message in each sink, once, as it was published."""
        for sink in ("delta", "ice"):
            rows = self.table_rows(sink)
            places = [(row["partition"], row["offset"]) for row in rows]
            assert Counter(places) == dict.fromkeys(self.good, 1), sink
            for row, place in zip(rows, places, strict=True):
                assert (row["topic"], row["n"]) == (TOPIC, self.good[place])
                assert bytes(row["payload"]) == payload(self.good[place])
        self.check_copy()

    def check_copy(self, without: int = 0) -> None:
        copied: Counter[tuple[int, int]] = Counter()
        for message in self.messages(f"{TOPIC}-copy"):
            partition, offset = dict(message["attributes"])["place"].split(":")
            copied[int(partition), int(offset)] += 1
            assert message["payload"] == payload(self.good[int(partition), int(offset)])
        copied_once = [place for place in self.good if place[1] < self._next[place[0]] - without]
        assert copied == dict.fromkeys(copied_once, 1)


@pytest.fixture(scope="module")
def story(broker, tmp_path_factory) -> Iterator[Story]:
    topics = Topics(broker.url)
    create_partitions(broker, TOPIC, PARTITIONS)
    story = Story(tmp_path_factory.mktemp("crashes"), topics)
    story.publish(20)
    story.publish_poison()
    story.publish(ROWS)
    for batch, moment in enumerate(killed_pipeline.MOMENTS):
        story.kill(moment, batch)
    yield story
    topics.close()


@pytest.mark.slow
@pytest.mark.timeout(4 * KILL_SECONDS_MAX)
def test_drivers_killed_at_every_step_neither_lose_nor_repeat(story, spark):
    assert 0 < len(story.table_rows("ice")) < len(story.good)
    story.run(spark)
    story.check()


def test_poison_is_a_dead_letter_of_each_flow_once(story):
    attributes = [dict(each["attributes"]) for each in story.messages(f"{TOPIC}-dlq")]
    places = [
        (int(each["x-original-topic-partition"]), int(each["x-original-topic-offset"]))
        for each in attributes
    ]
    assert Counter(places) == dict.fromkeys(story.dead, 3)
    assert {each["x-original-topic"] for each in attributes} == {TOPIC}


def test_a_column_that_is_added_reaches_both_tables_by_name(story, spark):
    before = len(story.good)
    text = story.file.read_text()
    story.file.write_text(
        text.replace("payload, n FROM valid", "n * 2 AS twice, payload, n FROM valid")
    )
    story.publish(30)
    story.run(spark)
    story.check()
    for sink in ("delta", "ice"):
        twice = [row for row in story.table_rows(sink) if row["twice"] is not None]
        assert len(twice) == len(story.good) - before
        assert all(row["twice"] == 2 * row["n"] for row in twice)


def test_lost_checkpoints_are_refused_and_tables_go_on_where_they_end(story, spark):
    (story.root / "checkpoints").rename(story.root / "lost")
    story.publish(20)
    for flow in ("delta", "ice"):
        with pytest.raises(FlowRefused, match="--new-checkpoint --from-sink"):
            story.run(spark, flow=flow)
        story.run(spark, flow=flow, beginning=Beginning(new_checkpoint=True, from_sink=True))
    with pytest.raises(FlowRefused, match="does not say how far the flow was"):
        story.run(spark, flow="copy", beginning=Beginning(new_checkpoint=True, from_sink=True))
    # A topic says nothing of whence its rows came, but the flow's subscription stood there.
    with pytest.raises(FlowRefused, match="the flow has run before"):
        story.run(spark, flow="copy")
    (copy,) = [
        each for each in plan_pipeline(story.definition(), spark).flows if each.flow == "copy"
    ]
    assert "subscription crashes.copy.numbers has passed" in copy.refusals[0]
    story.check_copy(without=20)
    definition = story.definition()
    other = structs.replace(definition.sinks[0], topic=f"{TOPIC}-again")
    again = structs.replace(definition, sinks=(other,))
    anew = Beginning(new_checkpoint=True)
    check_outcome(PipelineRun(again, spark, beginning=anew).run())
    assert len(story.messages(f"{TOPIC}-again")) == len(story.good)
    for flow in ("delta", "ice"):
        rows = story.table_rows(flow)
        assert Counter((row["partition"], row["offset"]) for row in rows) == dict.fromkeys(
            story.good, 1
        )
