"""Pipelines on real Spark and a real broker: expectations, dead letters, crashes, restarts."""

import json
import os
import time
from collections import Counter
from pathlib import Path
from runpy import run_path
from typing import Any

import pyarrow.flight as flight
import pytest
from deltalake import DeltaTable

from pydanube.errors import AlreadyExists, InvalidRequest
from pydanube.pipelines import Pipeline, lake_parts, replaying
from pydanube.pipelines.control import statuses, stop_flows
from pydanube.pipelines.definitions import PipelineDefinition
from pydanube.pipelines.documents import read_definition
from pydanube.pipelines.errors import ExpectationFailed, FlowHeld, FlowRefused, InvalidPipeline
from pydanube.pipelines.graph import check_graph
from pydanube.pipelines.metrics import metrics_text
from pydanube.pipelines.planning import plan_pipeline
from pydanube.pipelines.replaying import replay
from pydanube.pipelines.runner import PipelineRun, check_outcome
from pydanube.pipelines.sinks.catalog import kind_of
from pydanube.storage.segments import compaction
from tests.support import remembering
from tests.support.spark_topics import delete_topic, payload

PROGRAMS = ("produce", "query", "picture")

FILE = """\
pipeline: numbers
danube: {url: "URL"}
spark: {master: "local[2,4]", conf: {spark.sql.shuffle.partitions: 2, spark.ui.enabled: false}}
checkpoints: ROOT/checkpoints
trigger: {available_now: true}
on_failure: {restarts: 0}
sources:
  numbers:
    topic: TOPIC
    watermark: {column: publish_time, delay: 1 minute}
    options: {maxRowsPerTrigger: 400, pollMs: 1}
steps:
  - name: flat
    sql: >
      SELECT topic, partition, offset, publish_time, routing_key, attributes, payload,
      from_json(cast(payload AS string), 'number bigint').number AS n FROM numbers
  - name: valid
    from: flat
    expect:
      - {name: no-three, check: "n % 10 <> 3", otherwise: dead_letter}
      - {name: no-seven, check: "n % 10 <> 7", otherwise: dead_letter}
      - {name: small, check: "n < 900", otherwise: drop}
      - {name: keyed, check: "routing_key IS NOT NULL", otherwise: warn}
sinks:
  - SINK
dead_letter: {topic: TOPIC-dlq}
"""
LAKE = "{name: lake, from: valid, format: delta, path: ROOT/lake}"


ICE = (
    "{name: ice, from: valid, format: iceberg, table: lake.numbers, catalog: {type: sql, "
    "uri: 'sqlite:///ROOT/catalog.db', warehouse: 'file://ROOT/ice'}}"
)


BARE = (
    "{name: bare, from: valid, format: iceberg, table: lake.numbers, catalog: {type: none, "
    "warehouse: 'ROOT/bare'}}"
)


DATABASE = "{name: database, from: valid, format: sql, url: 'sqlite:///ROOT/shop.db', table: n}"


@pytest.fixture
def text(broker, topic, tmp_path) -> str:
    return FILE.replace("URL", broker.url).replace("TOPIC", topic)


def written(text: str, sink: str, root: Path) -> str:
    return text.replace("SINK", sink).replace("ROOT", str(root))


def read(text: str) -> PipelineDefinition:
    definition, places = read_definition(text, "numbers.yml", {})
    check_graph(definition, places)
    return definition


def run(spark: Any, text: str, **options: Any) -> Any:
    found = PipelineRun(read(text), spark, **options).run()
    check_outcome(found)
    return found


def is_good(number: int) -> bool:
    return number % 10 not in (3, 7) and number < 900


def is_dead(number: int) -> bool:
    return number % 10 in (3, 7)


def check_exact(rows: list[dict[str, Any]], numbers: list[int]) -> None:
    """The law: count, distinct places, content."""
    places = [(row["topic"], row["partition"], row["offset"]) for row in rows]
    assert len(places) == len(numbers)
    assert len(set(places)) == len(places), "a row came twice"
    for row in rows:
        assert bytes(row["payload"]) == payload(row["offset"])
    assert sorted(row["offset"] for row in rows) == numbers


def check_dead(topics: Any, topic: str, numbers: list[int]) -> None:
    reader = topics._client.do_get(flight.Ticket(f"{topic}-dlq".encode()))
    rows = reader.read_all().to_pylist()
    found = [dict(row["attributes"]) for row in rows]
    offsets = [int(each["x-original-topic-offset"]) for each in found]
    assert sorted(offsets) == numbers
    for row, each in zip(rows, found, strict=True):
        number = int(each["x-original-topic-offset"])
        assert row["payload"] == payload(number)
        assert each["x-failure-reason"] == ("no-three" if number % 10 == 3 else "no-seven")
        assert (each["x-original-topic"], each["x-step"]) == (topic, "valid")
        assert each["x-pipeline"] == "numbers"
        assert each.get("n") == (str(number) if number % 2 else None)


def lake_rows(root: Path) -> list[dict[str, Any]]:
    return DeltaTable(str(root / "lake")).to_pyarrow_table().to_pylist()


def rows_of(text: str, sink: str) -> list[dict[str, Any]]:
    (found,) = [each for each in read(text).sinks if each.name == sink]
    return kind_of(found).table(found).rows().to_pylist()


class TestExpectations:
    def test_good_rows_reach_the_table_and_the_others_the_dead_letters(
        self, spark, topics, topic, text, tmp_path
    ):
        topics.publish(topic, range(1000))
        (status,) = run(spark, written(text, LAKE, tmp_path))
        check_exact(lake_rows(tmp_path), [n for n in range(1000) if is_good(n)])
        check_dead(topics, topic, [n for n in range(1000) if is_dead(n)])
        assert (status.rows_in, status.rows_out, status.dead_letters) == (1000, 720, 200)
        assert status.failed_expectations == {
            "no-three/dead_letter": 100,
            "no-seven/dead_letter": 100,
            "small/drop": 100,
            "keyed/warn": len([n for n in range(1000) if not n % 3]),
        }
        assert (status.state, status.batch, status.lag) == ("DONE", 2, 0)
        assert b'danube_pipeline_rows_out_total{pipeline="numbers",flow="lake"} 720' in (
            metrics_text([status])
        )
        # A second run goes on where the first one ended, with another filter.
        topics.publish(topic, range(1000, 1100))
        more = written(text, LAKE, tmp_path).replace("n < 900", "n >= 0")
        assert run(spark, more)[0].rows_in == 100
        good = [n for n in range(1000) if is_good(n)]
        good += [n for n in range(1000, 1100) if not is_dead(n)]
        check_exact(lake_rows(tmp_path), good)

    def test_a_rule_to_fail_fails_before_anything_is_written(
        self, spark, topics, topic, text, tmp_path
    ):
        topics.publish(topic, range(100))
        failing = written(text, LAKE, tmp_path).replace("otherwise: drop", "otherwise: fail")
        failing = failing.replace("n < 900", "n <> 50")
        definition = read(failing)
        (status,) = PipelineRun(definition, spark).run()
        assert status.state == "FAILED"
        assert "1 rows break the expectation small" in status.error
        assert f"failed in batch 0, which ends before {topic} 100, and is rep" in status.error
        assert not (tmp_path / "lake").exists()
        assert ExpectationFailed.code

    def test_rows_that_are_rejected_ahead_of_state_have_a_query_of_their_own(
        self, spark, topics, topic, text, tmp_path
    ):
        # From one on: a row at time 0 is late for Spark from the beginning.
        topics.publish(topic, range(1, 301))
        topics.publish(topic, range(1, 301))
        deduped = (
            "  - {name: deduped, from: valid, dedupe: {keys: [n], within: 1 hour, "
            "time: publish_time}}\nsinks:"
        )
        sink = "{name: copy, from: deduped, format: parquet, path: ROOT/copy}"
        run(spark, written(text.replace("sinks:", deduped), sink, tmp_path))
        rows = spark.read.parquet(str(tmp_path / "copy")).collect()
        assert sorted(row.n for row in rows) == [n for n in range(1, 301) if not is_dead(n)]
        dlq = topics._client.do_get(flight.Ticket(f"{topic}-dlq".encode())).read_all()
        assert dlq.num_rows == 2 * 60


class TestSinks:
    def test_totals_per_minute_reach_a_table_and_a_topic(
        self, spark, topics, topic, text, tmp_path
    ):
        topics.publish(topic, range(600))
        totals = """\
  - name: totals
    sql: >
      SELECT window(publish_time, '1 minute').start AS minute, count(*) AS n
      FROM flat GROUP BY window(publish_time, '1 minute')
sinks:"""
        changed = text.replace("sinks:", totals)
        lake = LAKE.replace("valid", "totals").replace("}", ", mode: upsert, key: [minute]}")
        run(spark, written(changed, lake, tmp_path))
        rows = lake_rows(tmp_path)
        assert Counter(row["n"] for row in rows) == {60: 10}
        alerts = (
            f"{{name: alerts, from: totals, format: danube, topic: {topic}-alerts, encode: json}}"
        )
        run(spark, written(changed, alerts, tmp_path))
        # Minutes that are over, by the watermark of one minute.
        reader = topics._client.do_get(flight.Ticket(f"{topic}-alerts".encode()))
        found = [json.loads(each) for each in reader.read_all()["payload"].to_pylist()]
        assert [each["n"] for each in found] == [60] * 8


class TestState:
    def test_a_class_remembers_keys_from_batch_to_batch_and_run_to_run(
        self, spark, topics, topic, text, tmp_path
    ):
        counted = """\
  - {name: keyed, sql: "SELECT * FROM flat WHERE routing_key IS NOT NULL"}
  - {name: counted, from: keyed, state: {class: "CLASS", keys: [routing_key]}}
sinks:""".replace("CLASS", f"{remembering.__name__}:Counting")
        lake = LAKE.replace("valid", "counted").replace("}", ", mode: upsert, key: [routing_key]}")
        file = written(text.replace("sinks:", counted), lake, tmp_path)
        topics.publish(topic, range(500))
        (status,) = run(spark, file)
        assert status.batches >= 2
        topics.publish(topic, range(500, 700))
        run(spark, file)
        rows = {row["routing_key"]: (row["count"], row["last"]) for row in lake_rows(tmp_path)}
        numbers = [n for n in range(700) if n % 3]
        assert rows == {
            f"key-{k}": (
                len([n for n in numbers if n % 7 == k]),
                max(n for n in numbers if n % 7 == k),
            )
            for k in range(7)
        }


class TestExample:
    def test_the_demo_runs_the_example(self):
        example = Path("examples/orders/orders.yml").read_text(encoding="utf-8")
        packed = Path("src/pydanube/pipelines/orders.yml").read_text(encoding="utf-8")
        assert example == packed
        check_graph(read_definition(example, "orders.yml", {})[0])

    def test_orders_are_totalled_asked_and_drawn(self, spark, broker, topics, tmp_path):
        program = {name: run_path(f"examples/orders/{name}.py") for name in PROGRAMS}
        program["produce"]["main"](broker.url, "500")
        loaded = Pipeline.load(
            "examples/orders/orders.yml", spark, url=broker.url, root=str(tmp_path)
        )
        found = {each.flow: each for each in loaded.run(available_now=True)}
        assert found["lake.rejected"].dead_letters == 10
        rows = DeltaTable(str(tmp_path / "totals")).to_pyarrow_table().to_pylist()
        assert sum(row["orders"] for row in rows) == 490
        assert len({(row["minute"], row["country"]) for row in rows}) == len(rows)
        asked = program["query"]["largest"](spark, broker.url)
        assert sum(row.orders for row in asked) == 500
        program["picture"]["main"](str(tmp_path), str(tmp_path / "orders.png"))
        assert (tmp_path / "orders.png").stat().st_size > 10_000


class TestCheckpoints:
    def test_a_lost_checkpoint_is_refused_and_the_sink_shows_the_way(
        self, spark, topics, topic, text, tmp_path
    ):
        topics.publish(topic, range(500))
        file = written(text, LAKE, tmp_path)
        run(spark, file)
        (tmp_path / "checkpoints").rename(tmp_path / "lost")
        topics.publish(topic, range(500, 1000))
        with pytest.raises(FlowRefused, match="--new-checkpoint --from-sink"):
            run(spark, file)
        plan = plan_pipeline(read(file), spark)
        assert plan.is_refused
        assert plan.flows[0].guarantee == "exactly once"
        (waiting,) = plan.flows[0].waiting
        assert (waiting.start, waiting.rows) == ({topic: 0}, 1000)
        assert waiting.bytes > 10_000
        from pydanube.pipelines.checks import Beginning

        run(spark, file, beginning=Beginning(new_checkpoint=True, from_sink=True))
        check_exact(lake_rows(tmp_path), [n for n in range(1000) if is_good(n)])
        run(spark, file)  # It goes on as if nothing had happened.
        topics.publish(topic, range(1000, 1030))
        (waiting,) = plan_pipeline(read(file), spark).flows[0].waiting
        assert (waiting.source, waiting.start, waiting.rows) == ("numbers", {topic: 1000}, 30)
        other = file.replace(f"topic: {topic}\n", f"topic: {topic}-other\n")
        topics.publish(f"{topic}-other", range(1))
        with pytest.raises(FlowRefused, match="the sources were"):
            run(spark, other)

    def test_a_flow_that_runs_can_be_seen_and_stopped_and_not_run_twice(
        self, spark, topics, topic, text, tmp_path
    ):
        topics.publish(topic, range(100))
        file = written(text, LAKE, tmp_path).replace("available_now: true", "every: 100ms")
        running = PipelineRun(read(file), spark)
        running.start()
        # Else the manager goes on about the queries of other tests.
        spark.streams.resetTerminated()
        try:
            with pytest.raises(FlowHeld, match=f"process {os.getpid()} on "):
                PipelineRun(read(file), spark).start()
            turns = 0
            while running.statuses()[0].batch is None and turns < 600:
                running.turn()
                turns += 1
                spark.streams.awaitAnyTermination(0.1)
            root = str(tmp_path / "checkpoints")
            assert [each.state for each in statuses(root)] == ["RUNNING"]
            with pytest.raises(Exception, match="still runs"):
                stop_flows(root, "numbers", seconds_max=0)
        finally:
            while running.turn():
                spark.streams.awaitAnyTermination(0.1)
        assert [each.state for each in stop_flows(root, "numbers")] == ["STOPPED"]


class TestBoundaries:
    def test_one_message_and_batches_that_end_with_segments_are_in_tables_once(
        self, spark, topics, topic, text, tmp_path
    ):
        file = written(text, f"{LAKE}\n  - {ICE}\n  - {BARE}\n  - {DATABASE}", tmp_path)
        topics.publish(topic, range(1))
        run(spark, file)
        for flow in ("lake", "ice", "bare", "database"):
            check_exact(rows_of(file, flow), [0])
        topics.wait_sealed(topic)
        topics.publish(topic, range(1, 41))
        topics.wait_sealed(topic)
        topics.publish(topic, range(41, 60))
        assert [end for _, end, _ in topics.segments(topic)][:2] == [1, 41]
        # The first batch from here ends with the second segment, the next one behind its start.
        run(spark, file.replace("maxRowsPerTrigger: 400", "maxRowsPerTrigger: 40"))
        for flow in ("lake", "ice", "bare", "database"):
            check_exact(rows_of(file, flow), [n for n in range(60) if not is_dead(n)])


class TestReplay:
    @pytest.fixture(autouse=True)
    def tasks_write_and_keys_come_in_parts(self, monkeypatch):
        """Let a few rows do as many would."""
        monkeypatch.setattr(replaying, "_SMALL_BYTES", 0)
        monkeypatch.setattr(lake_parts, "ROWS_AT_ONCE", 4)

    def test_history_goes_through_the_steps_into_something_new(
        self, spark, topics, topic, text, tmp_path
    ):
        topics.publish(topic, range(100))
        definition = read(written(text, LAKE, tmp_path))
        start = json.dumps({topic: 50})
        again = str(tmp_path / "again")
        told = replay(definition, spark, "lake", start=start, into=again, dry_run=True)
        assert (told.rows, told.dry_run) == (40, True)
        assert not (tmp_path / "again").exists()
        done = replay(definition, spark, "lake", start=start, into=again)
        rows = DeltaTable(again).to_pyarrow_table().to_pylist()
        check_exact(rows, [n for n in range(50, 100) if not is_dead(n)])
        assert done.rows == len(rows)
        with pytest.raises(AlreadyExists):
            replay(definition, spark, "lake", start=start, into=again)
        with pytest.raises(InvalidRequest, match="the live sink"):
            replay(definition, spark, "lake", into=str(tmp_path / "lake"))

    @pytest.mark.parametrize("sink", [LAKE, ICE], ids=["delta", "iceberg"])
    def test_a_swap_replaces_the_table_and_the_flow_goes_on(
        self, spark, topics, topic, text, tmp_path, sink
    ):
        topics.publish(topic, range(100))
        file = written(text, sink, tmp_path)
        flow, new = ("lake", str(tmp_path / "new")) if sink is LAKE else ("ice", "lake.new")
        with pytest.raises(FlowRefused, match="run it first"):
            replay(read(file), spark, flow, into=new, swap=True)
        run(spark, file)
        topics.publish(topic, range(100, 150))
        changed = file.replace("FROM numbers", ", 'new' AS word FROM numbers")
        told = replay(read(changed), spark, flow, into=new, swap=True, dry_run=True)
        assert (told.swapped, told.rows) == (False, 80)
        assert "word" not in rows_of(changed, flow)[0]
        done = replay(read(changed), spark, flow, into=new, swap=True)
        assert (done.swapped, done.rows) == (True, 80)
        rows = rows_of(changed, flow)
        check_exact(rows, [n for n in range(100) if not is_dead(n)])
        assert {row["word"] for row in rows} == {"new"}
        # Asked again, nothing changes; the flow goes on where it was.
        replay(read(changed), spark, flow, into=new, swap=True)
        run(spark, changed)
        check_exact(rows_of(changed, flow), [n for n in range(150) if not is_dead(n)])
        with pytest.raises(AlreadyExists, match="holds something else"):
            replay(read(changed), spark, flow, into=new, swap=True)

    def test_a_swap_that_cannot_be_exact_is_refused(self, spark, topics, topic, text, tmp_path):
        topics.publish(topic, range(10))
        file = written(text, LAKE, tmp_path)
        run(spark, file)
        with pytest.raises(InvalidRequest, match="leave --to out"):
            replay(read(file), spark, "lake", into="/x", end="latest", swap=True)
        record = tmp_path / "checkpoints/numbers/lake.flow.json"
        record.unlink()
        with pytest.raises(FlowRefused, match="nothing says where it began"):
            replay(read(file), spark, "lake", into=str(tmp_path / "new"), swap=True)
        topic_sink = f"{{name: out, from: plain, format: danube, topic: {topic}-out}}"
        plain = "  - {name: plain, sql: 'SELECT payload FROM valid'}\nsinks:"
        other = written(text.replace("sinks:", plain), topic_sink, tmp_path)
        with pytest.raises(InvalidRequest, match="only Delta and Iceberg tables"):
            replay(read(other), spark, "out", into=f"{topic}-new", swap=True)

    @pytest.mark.parametrize("dead", ["topic: TOPIC-dlq", "path: ROOT/dead"])
    def test_dead_letters_get_another_try_once(self, spark, topics, topic, text, tmp_path, dead):
        topics.publish(topic, range(100))
        told = text.replace(f"topic: {topic}-dlq", dead.replace("TOPIC", topic))
        # Two flows reject the same rows.
        sinks = f"{LAKE}\n  - {{name: other, from: valid, format: noop}}"
        file = written(told, sinks, tmp_path)
        run(spark, file)
        check_exact(lake_rows(tmp_path), [n for n in range(100) if not is_dead(n)])
        milder = file.replace("n % 10 <> 3", "n >= 0")
        for _ in range(2):
            done = replay(
                read(milder), spark, "lake", into=str(tmp_path / "lake"), dead_letters=True
            )
            assert done.rows == 10
            check_exact(lake_rows(tmp_path), [n for n in range(100) if n % 10 != 7])
        returned = [row for row in lake_rows(tmp_path) if row["n"] % 10 == 3]
        assert {dict(row["attributes"] or {}).get("x-step") for row in returned} == {None}
        into = str(tmp_path / "retried")
        assert replay(read(milder), spark, "lake", into=into, dead_letters=True).rows == 10

    def test_history_that_was_compacted_is_replayed_alike(
        self, spark, broker, topics, topic, text, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(compaction, "RUN_MIN", 2)
        for first in (0, 60):
            topics.publish(topic, range(first, first + 60))
            topics.wait_sealed(topic)
        before = topics.segments(topic)
        assert len(before) > 1
        file = written(text, LAKE, tmp_path)
        replay(read(file), spark, "lake", into=str(tmp_path / "before"))
        wait_compacted(broker, topics, topic, len(before))
        for into in ("after", "part"):
            start = json.dumps({topic: 50 if into == "part" else 0})
            replay(read(file), spark, "lake", start=start, into=str(tmp_path / into))
        for into, first in (("before", 0), ("after", 0), ("part", 50)):
            rows = DeltaTable(str(tmp_path / into)).to_pyarrow_table().to_pylist()
            check_exact(rows, [n for n in range(first, 120) if not is_dead(n)])


def wait_compacted(broker: Any, topics: Any, topic: str, segments: int) -> None:
    """Let the broker tidy up until a topic has fewer segments. Deleting a topic wakes it."""
    for turn in range(100):
        if len(topics.segments(topic)) < segments:
            return
        topics.publish(f"{topic}-gone-{turn}", range(1))
        delete_topic(broker, f"{topic}-gone-{turn}")
        time.sleep(0.1)  # The broker tells nobody when it joins segments.
    raise AssertionError(f"{topic} still has {topics.segments(topic)}")


class TestPython:
    def test_functions_build_the_same_pipeline_and_can_be_tested(
        self, spark, broker, topics, topic, tmp_path
    ):
        topics.publish(topic, range(200))
        p = Pipeline(
            "numbers",
            checkpoints=f"file://{tmp_path}/checkpoints",
            url=broker.url,
            dead_letter=f"{topic}-dlq",
            spark=spark,
        )
        source = p.source("numbers", topic=topic, options={"pollMs": 1})

        @p.step(source, expect={"no-three": "n % 10 <> 3"}, otherwise="dead_letter")
        def valid(frame):
            number = "from_json(cast(payload AS string), 'number bigint').number AS n"
            return frame.selectExpr("topic", "partition", "offset", "payload", number)

        p.sink("lake", valid, delta=str(tmp_path / "lake"))
        tested = p.test(
            {
                "numbers": [
                    {"topic": "t", "partition": 0, "offset": n, "payload": payload(n)}
                    for n in range(5)
                ]
            }
        )
        assert [row["n"] for row in tested] == [0, 1, 2, 4]
        assert p.plan().flows[0].refusals == ()
        (status,) = p.run(available_now=True)
        assert (status.rows_out, status.dead_letters) == (180, 20)
        check_exact(lake_rows(tmp_path), [n for n in range(200) if n % 10 != 3])

    def test_a_function_that_fails_in_a_batch_gets_another_try(
        self, spark, broker, topics, topic, tmp_path
    ):
        topics.publish(topic, range(10))
        p = Pipeline("numbers", checkpoints=f"file://{tmp_path}/c", url=broker.url, spark=spark)
        asked = []

        @p.step(
            p.source("numbers", topic=topic),
            expect={"whole": "payload IS NOT NULL"},
            otherwise="drop",
        )
        def enriched(frame):
            if not frame.isStreaming:
                asked.append(frame)
                if len(asked) == 1:
                    raise ConnectionError("the list of rates does not answer")
            return frame

        p.sink("lake", enriched, delta=str(tmp_path / "lake"))
        (status,) = p.run(available_now=True)
        assert (status.state, status.restarts, status.rows_out) == ("DONE", 1, 10)

    def test_chance_in_a_function_is_refused(self, spark, broker, topics, topic, tmp_path):
        topics.publish(topic, range(1))
        p = Pipeline("p", checkpoints=str(tmp_path), url=broker.url, spark=spark)

        @p.step(p.source("a", topic=topic))
        def drawn(frame):
            return frame.selectExpr("cast(rand() AS string) AS payload")

        p.sink("b", drawn, topic=f"{topic}-b")
        (flow,) = p.plan().flows
        assert "rand gives another answer when a batch is repeated" in flow.refusals[0]

    @pytest.mark.parametrize(
        ("step", "words"),
        [
            (
                'python: "absent:keep"',
                "absent:keep cannot be loaded: ModuleNotFoundError: No module named 'absent'; "
                "is it beside the file, or in PYTHONPATH?",
            ),
            (
                'python: "unfinished:keep"',
                "unfinished:keep cannot be loaded: AttributeError: module 'unfinished' has no "
                "attribute 'keep'",
            ),
            (
                'python: "unreadable:keep"',
                "unreadable:keep cannot be loaded: SyntaxError: invalid syntax "
                "(unreadable.py, line 1)",
            ),
            (
                'python: "with_mistakes:keep"',
                "numbers/lake, step kept: with_mistakes:keep failed (ROOT/with_mistakes.py:2): "
                "KeyError: 'country'",
            ),
            (
                'sql: "SELECT nope FROM numbers"',
                "numbers/lake, step kept: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, "
                "or function parameter with name `nope` cannot be resolved.",
            ),
        ],
    )
    def test_a_step_that_fails_is_named_in_a_line(
        self, spark, topics, topic, text, tmp_path, monkeypatch, step, words
    ):
        topics.publish(topic, range(1))
        (tmp_path / "unfinished.py").touch()
        (tmp_path / "unreadable.py").write_text("keep =\n")
        (tmp_path / "with_mistakes.py").write_text("def keep(frame):\n    return {}['country']\n")
        monkeypatch.syspath_prepend(tmp_path)
        given = "from: numbers, " if "python" in step else ""
        sources, _, _ = text.partition("steps:")
        steps = f"steps: [{{name: kept, {given}{step}}}]\nsinks: [SINK]\n"
        found = written(sources + steps, LAKE.replace("valid", "kept"), tmp_path)
        (flow,) = plan_pipeline(read(found), spark).flows
        (refusal,) = flow.refusals
        assert refusal.startswith(words.replace("ROOT", str(tmp_path)))
        assert len(refusal.splitlines()) == 1

    def test_a_mistake_is_named(self, tmp_path):
        p = Pipeline("p", checkpoints=str(tmp_path))
        p.sink("b", p.source("a", topic="orders"), delta=str(tmp_path))
        with pytest.raises(InvalidPipeline, match=r"sources\.a\.topic"):
            p.definition()
