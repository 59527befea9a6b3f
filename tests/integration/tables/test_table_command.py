"""`danube table` against a real broker, real tables and real schemas."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyiceberg.table import StaticTable

import pydanube
from pydanube.cli.main import danube
from pydanube.testing.broker import Broker
from tests.support.spark_topics import Topics, create_partitions, delete_topic

ORDER = {"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topics(broker: Broker) -> Iterator[Topics]:
    topics = Topics(broker.url)
    yield topics
    topics.close()


class Tables:
    """The command, and the files it works on."""

    def __init__(self, broker: Broker, root: Path) -> None:
        self.broker = broker
        self.root = root
        self.catalogs = root / "catalogs.yaml"
        self.catalogs.write_text(
            json.dumps(
                {
                    "catalogs": {
                        "lake": {
                            "type": "sql",
                            "properties": {
                                "uri": f"sqlite:///{root}/catalog.db",
                                "warehouse": f"file://{root}/warehouse",
                            },
                        },
                        "files": {"type": "none", "properties": {"warehouse": f"{root}/delta"}},
                        "bare": {"type": "none", "properties": {"warehouse": f"{root}/bare"}},
                    }
                }
            )
        )

    def arguments(self, verb: str, *rest: str) -> list[str]:
        where = ["--service-addr", self.broker.url, "--catalogs", str(self.catalogs)]
        return ["table", verb, *rest, *where]

    def run(self, verb: str, *rest: str) -> Result:
        return CliRunner().invoke(danube, self.arguments(verb, *rest))

    def answer(self, verb: str, *rest: str) -> Any:
        result = self.run(verb, *rest, "--output", "json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def rows(self, kind: str, name: str) -> list[dict[str, Any]]:
        if kind == "delta":
            from deltalake import DeltaTable

            return DeltaTable(f"{self.root}/delta/default/{name}").to_pyarrow_table().to_pylist()
        if kind == "bare":
            return self.opened_by_path(name).scan().to_arrow().to_pylist()
        from pyiceberg.catalog import load_catalog

        lake = json.loads(self.catalogs.read_text())["catalogs"]["lake"]
        catalog = load_catalog("lake", type="sql", **lake["properties"])
        return catalog.load_table(f"default.{name}").scan().to_arrow().to_pylist()

    def opened_by_path(self, name: str) -> StaticTable:
        """Open a table without a catalogue as anybody does, by its directory."""
        return StaticTable.from_metadata(f"{self.root}/bare/default/{name}")


@pytest.fixture
def tables(broker: Broker, tmp_path: Path) -> Tables:
    return Tables(broker, tmp_path)


CATALOG = {"delta": "files", "iceberg": "lake", "bare": "bare"}
FORMAT = {"delta": "delta", "iceberg": "iceberg", "bare": "iceberg"}


@pytest.mark.parametrize("kind", ["delta", "iceberg", "bare"])
def test_a_topic_becomes_a_table_and_goes_on_where_it_was(
    tables: Tables, topics: Topics, kind: str
) -> None:
    topic, name = f"/default/tour-{kind}", f"tour_{kind}"
    topics.publish(topic, range(30))
    placed = ["--format", FORMAT[kind], "--catalog", CATALOG[kind]]
    told = tables.answer("enable", topic, *placed, "--dry-run")
    assert (told["dry_run"], tables.answer("list")) == (True, [])
    enabled = tables.answer("enable", topic, *placed)
    assert enabled == {**told, "dry_run": False}
    assert "payload binary" in enabled["columns"]
    assert [each["topic"] for each in tables.answer("list")] == [topic]
    assert tables.answer("status", topic)["lag_rows"] == 30
    assert tables.answer("backfill", topic)["lag_rows"] == 0
    assert len(tables.rows(kind, name)) == 30
    tables.answer("disable", topic)
    assert tables.answer("list") == []
    assert tables.run("status", topic).exit_code == 3
    topics.publish(topic, range(30, 40))
    tables.answer("enable", topic, *placed)
    status = tables.answer("backfill", topic)
    assert status["next_offsets"] == {topic: 40}
    rows = sorted(tables.rows(kind, name), key=lambda row: row["offset"])
    assert [row["offset"] for row in rows] == list(range(40))
    assert [json.loads(row["payload"])["number"] for row in rows] == list(range(40))
    verdict = tables.answer("verify", topic)
    assert (verdict["rows"], verdict["expected"], verdict["findings"]) == (40, 40, [])
    tables.answer("disable", topic)


def test_a_table_without_a_catalogue_can_be_looked_after(tables: Tables, topics: Topics) -> None:
    topic = "/default/upkept"
    placed = ["--catalog", "bare", "--table", "default.upkept"]
    for first in range(0, 30, 10):
        topics.publish(topic, range(first, first + 10))
        tables.answer("enable", topic, *placed)
        tables.answer("backfill", topic)
    (compacted,) = tables.answer("compact", topic)
    assert (compacted["files_before"], compacted["files_after"]) == (3, 1)
    assert tables.answer("expire", topic)[0]["change"] == "expired"
    assert tables.answer("vacuum", topic)[0]["removed"] == 0
    assert tables.answer("rebuild", topic)["rows"] == 30
    assert tables.answer("verify", topic, "--content")["findings"] == []
    by_path = tables.opened_by_path("upkept")
    files = [task.file.file_path.removeprefix("file://") for task in by_path.scan().plan_files()]
    assert sum(pq.read_metadata(each).num_rows for each in files) == 30
    tables.answer("disable", topic)


def test_a_place_of_something_else_is_refused(tables: Tables, topics: Topics) -> None:
    topics.publish("/default/placed", range(1))
    delta = ["--format", "delta", "--catalog", "bare"]
    tables.answer("enable", "/default/placed", *delta)
    tables.answer("backfill", "/default/placed")
    refused = tables.run("enable", "/default/placed", "--catalog", "bare")
    assert "default/placed is a Delta table and no Iceberg table" in refused.output
    tables.answer("enable", "/default/placed", "--catalog", "bare", "--table", "default.other")
    tables.answer("backfill", "/default/placed")
    refused = tables.run("enable", "/default/placed", *delta, "--table", "default.other")
    assert "is an Iceberg table without a catalogue" in refused.output
    strange = tables.root / "bare" / "default" / "strange"
    strange.mkdir()
    (strange / "notes.txt").write_text("mine")
    refused = tables.run(
        "enable", "/default/placed", "--catalog", "bare", "--table", "default.strange"
    )
    assert "default/strange holds notes.txt" in refused.output
    (line,) = tables.answer("list")
    assert (line["table"], line["format"]) == ("default.other", "iceberg")
    tables.answer("disable", "/default/placed")


async def publish_orders(url: str, topic: str, subject: str) -> None:
    async with pydanube.connect(url) as client:
        await client.schemas.register(subject, json.dumps(ORDER))
        async with client.producer(topic) as producer:
            await producer.send(b'{"id": 1, "note": "first"}')
        await client.schemas.configure_topic(topic, subject, policy="none")
        async with client.producer(topic) as producer:
            await producer.send(b'{"id": "not a number"}')
            await producer.send(b'{"id": 3}')


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_fields_of_the_schema_are_columns_and_misfits_dead_letters(
    broker: Broker, tables: Tables, kind: str
) -> None:
    topic, name = f"/default/typed-{kind}", f"typed_{kind}"
    asyncio.run(publish_orders(broker.url, topic, f"orders-{kind}"))
    tables.answer("enable", topic, "--format", kind, "--catalog", CATALOG[kind])
    status = tables.answer("backfill", topic)
    assert (status["dead_letters"], status["lag_rows"]) == (1, 0)
    rows = sorted(tables.rows(kind, name), key=lambda row: row["offset"])
    assert [(row["offset"], row["id"], row["note"]) for row in rows] == [
        (0, 1, "first"),
        (2, 3, None),
    ]
    (letter,) = tables.rows(kind, f"{name}__dlq")
    assert (letter["offset"], letter["payload"]) == (1, b'{"id": "not a number"}')
    assert tables.answer("verify", topic)["findings"] == []
    tables.answer("disable", topic)


def test_a_table_that_lost_rows_is_found_out(tables: Tables, topics: Topics) -> None:
    from deltalake import DeltaTable

    topic = "/default/damaged"
    topics.publish(topic, range(20))
    tables.answer("enable", topic, "--format", "delta", "--catalog", "files")
    tables.answer("backfill", topic)
    DeltaTable(f"{tables.root}/delta/default/damaged").delete("offset = 7 or offset = 8")
    result = tables.run("verify", topic, "--output", "json")
    assert result.exit_code == 1
    (finding,) = json.loads(result.stdout)["findings"]
    assert finding["missing"] == ["7-8"]
    tables.answer("disable", topic)


def test_a_start_at_the_end_is_fixed_when_the_table_is_enabled(
    tables: Tables, topics: Topics
) -> None:
    topic = "/default/late"
    topics.publish(topic, range(5))
    tables.answer("enable", topic, "--format", "delta", "--catalog", "files", "--start", "latest")
    topics.publish(topic, range(5, 8))
    tables.answer("backfill", topic)
    assert sorted(row["offset"] for row in tables.rows("delta", "late")) == [5, 6, 7]
    assert tables.answer("verify", topic)["findings"] == []
    tables.answer("disable", topic)


def test_a_partitioned_topic_is_one_table_and_a_topic_created_anew_is_refused(
    broker: Broker, tables: Tables, topics: Topics
) -> None:
    topic = "/default/parts"
    create_partitions(broker, topic, 2)
    topics.publish(f"{topic}-part-0", range(4))
    topics.publish(f"{topic}-part-1", range(3))
    where = ["--format", "delta", "--table", f"{tables.root}/parts"]
    tables.answer("enable", topic, *where)
    assert tables.answer("backfill", topic)["next_offsets"] == {
        f"{topic}-part-0": 4,
        f"{topic}-part-1": 3,
    }
    delete_topic(broker, topic)
    create_partitions(broker, topic, 2)
    topics.publish(f"{topic}-part-0", range(9))
    assert tables.answer("list") == [], "the setting goes with its topic"
    tables.answer("enable", topic, *where)
    refused = tables.run("backfill", topic)
    assert refused.exit_code == 5
    assert "created anew" in refused.output
    tables.answer("disable", topic)


def test_a_pattern_makes_tables_of_all_its_topics_also_of_those_to_come(
    tables: Tables, topics: Topics
) -> None:
    topics.publish("/default/shop-a", range(3))
    topics.publish("/default/shop-b", range(2))
    topics.publish("/default/other", range(1))
    where = ["--format", "delta", "--table", f"{tables.root}/all/{{namespace}}/{{topic}}"]
    told = tables.answer("enable", "/default/shop-*", *where, "--dry-run")
    assert tables.answer("list") == []
    enabled = tables.answer("enable", "/default/shop-*", *where)
    assert enabled == {**told, "dry_run": False}
    assert enabled["topics"] == ["/default/shop-a", "/default/shop-b"]
    topics.publish("/default/shop-c", range(4))
    listed = {each["topic"]: each["table"] for each in tables.answer("list")}
    assert listed == {
        f"/default/shop-{name}": f"{tables.root}/all/default/shop-{name}" for name in "abc"
    }
    assert tables.answer("backfill", "/default/shop-c")["lag_rows"] == 0
    assert tables.answer("verify", "/default/shop-c")["rows"] == 4
    tables.answer("disable", "/default/shop-b")
    assert {each["topic"] for each in tables.answer("list")} == {
        "/default/shop-a",
        "/default/shop-c",
    }
    own = ["--format", "delta", "--table", f"{tables.root}/own"]
    tables.answer("enable", "/default/shop-b", *own)
    listed = {each["topic"]: each["table"] for each in tables.answer("list")}
    assert listed["/default/shop-b"] == f"{tables.root}/own"
    tables.answer("disable", "/default/shop-*")
    assert [each["topic"] for each in tables.answer("list")] == ["/default/shop-b"]
    tables.answer("disable", "/default/shop-b")
    assert tables.run("disable", "/default/shop-*").exit_code == 3


def test_a_table_is_made_anew_in_another_way(tables: Tables, topics: Topics) -> None:
    topic = "/default/anew"
    topics.publish(topic, range(8))
    where = ["--format", "iceberg", "--catalog", "lake"]
    tables.answer("enable", topic, *where)
    tables.answer("backfill", topic)
    refused = tables.run("enable", topic, *where, "--mode", "upsert")
    assert refused.exit_code == 5
    assert "was made as" in refused.output
    anew = ["enable", topic, *where, "--mode", "upsert", "--rebuild"]
    before = tables.rows("iceberg", "anew")
    told = tables.answer(*anew, "--dry-run")
    assert (told["dry_run"], told["messages"], told["rows"], told["dead_letters"]) == (
        True,
        8,
        5,
        3,
    )
    assert told["changes"] == ["mode: append -> upsert", "key: none -> routing_key"]
    assert "payload binary" in told["columns"]
    assert tables.answer("list")[0]["mode"] == "append"
    assert tables.rows("iceberg", "anew") == before
    assert not list(Path(tables.root).rglob("*anew__dlq*"))
    done = tables.answer(*anew)
    assert done == {**told, "dry_run": False}
    topics.publish(topic, range(8, 10))
    assert tables.answer("backfill", topic)["lag_rows"] == 0
    assert tables.answer("verify", topic)["findings"] == []
    keys = [row["routing_key"] for row in tables.rows("iceberg", "anew")]
    assert sorted(keys) == [f"key-{number}" for number in (0, 1, 2, 4, 5)]
    assert tables.answer("rebuild", topic)["messages"] == 10
    tables.answer("disable", topic)


def test_a_table_of_the_reference_layout_is_for_plain_topics(
    broker: Broker, tables: Tables, topics: Topics
) -> None:
    where = ["--format", "iceberg", "--catalog", "lake", "--layout", "danube-iceberg"]
    create_partitions(broker, "/default/layout-parts", 2)
    refused = tables.run("enable", "/default/layout-parts", *where)
    assert refused.exit_code == 2
    assert "no column for the partition" in refused.output
    topics.publish("/default/layout", range(5))
    tables.answer("enable", "/default/layout", *where)
    tables.answer("backfill", "/default/layout")
    verdict = tables.answer("verify", "/default/layout", "--content")
    assert (verdict["rows"], verdict["compared"], verdict["findings"]) == (5, 5, [])
    assert list(tables.rows("iceberg", "layout")[0]) == [
        "offset",
        "publish_time",
        "producer_name",
        "routing_key",
        "schema_id",
        "schema_version",
        "payload",
        "attributes_json",
    ]
    for verb in ("compact", "expire", "vacuum"):
        assert tables.answer(verb, "/default/layout", "--dry-run")
    tables.answer("disable", "/default/layout")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--format", "iceberg"], "which catalogue"),
        (["--format", "iceberg", "--catalog", "nowhere"], "there is no catalogue nowhere"),
        (["--format", "delta", "--catalog", "lake"], "of type none with a warehouse"),
        (["--format", "iceberg", "--table", "/data/x"], "namespace.name"),
        (["--catalog", "lake", "--freshness", "10ms"], "1s to 1h"),
        (["--catalog", "lake", "--key", "id"], "a key belongs to mode upsert"),
        (["--catalog", "lake", "--partition-by", "day(nothing)"], "cannot be partitioned"),
        (["--catalog", "lake", "--partition-by", "week(publish_time)"], "no partitioning"),
        (["--catalog", "lake", "--partition-by", "bucket(0, offset)"], "1 to 10000 buckets"),
        (["--catalog", "lake", "--partition-by", "bucket(4, payload)"], "needs a text"),
        (["--catalog", "files", "--format", "delta", "--layout", "danube-iceberg"], "for Iceberg"),
        (["--catalog", "lake", "--rebuild"], "there is no table"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    tables: Tables, topics: Topics, arguments: list[str], reason: str
) -> None:
    topics.publish("/default/refused", range(1))
    result = tables.run("enable", "/default/refused", *arguments)
    assert result.exit_code in (2, 3, 5)
    assert reason in result.output
    assert tables.answer("list") == []


def test_a_topic_that_does_not_exist_is_no_table(tables: Tables) -> None:
    result = tables.run("enable", "/default/nowhere", "--format", "delta", "--catalog", "files")
    assert result.exit_code == 3
    assert "nowhere" in result.output


def test_without_a_broker_the_service_says_so_and_still_stops(tables: Tables) -> None:
    program = "from pydanube.cli.main import danube; danube()"
    nobody = ["table", "run", "--service-addr", "http://127.0.0.1:9"]
    command = [sys.executable, "-c", program, *nobody]
    serving = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert serving.stderr is not None
        assert serving.stderr.readline() == "serving tables\n"
        assert serving.stderr.readline().startswith("tables: unavailable:")
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(timeout=20) == 0
    finally:
        serving.kill()
        serving.communicate()


def test_the_service_follows_a_topic_and_ends_on_sigterm(tables: Tables, topics: Topics) -> None:
    topic = "/default/followed"
    topics.publish(topic, range(10))
    tables.answer("enable", topic, "--format", "delta", "--catalog", "files", "--freshness", "1s")
    program = "from pydanube.cli.main import danube; danube()"
    command = [sys.executable, "-c", program, *tables.arguments("run")]
    serving = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert serving.stderr is not None
        assert serving.stderr.readline() == "serving tables\n"
        assert serving.stderr.readline() == (
            f"{topic} -> default.followed: 10 messages, 10 rows, lag 0\n"
        )
        published = time.monotonic()
        topics.publish(topic, range(10, 15))
        assert "5 messages, 5 rows, lag 0" in serving.stderr.readline()
        assert time.monotonic() - published < 10
        held = topics.act("cursor.get", topic=topic, subscription="table:default.followed")
        assert (held["position"], held["holds"]) == (15, True)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(timeout=20) == 0
        assert serving.stderr.read() == "stopped\n"
    finally:
        serving.kill()
        serving.communicate()
    assert len(tables.rows("delta", "followed")) == 15
    tables.answer("disable", topic)


def test_the_references_exporter_runs_by_its_own_file(tables: Tables, topics: Topics) -> None:
    topic = "/default/referred"
    topics.publish(topic, range(6))
    lake = json.loads(tables.catalogs.read_text())["catalogs"]["lake"]
    config = {
        "broker": {"address": tables.broker.url},
        "catalog": {"name": "lake", **lake},
        "compaction": {"max_flush_interval_seconds": 1},
        "topics": [{"namespace": "default", "topic": "referred", "table_name": "referred"}],
    }
    path = tables.root / "danube-iceberg.yaml"
    path.write_text(json.dumps(config))
    program = "from pydanube.cli.main import danube_iceberg; danube_iceberg()"
    command = [sys.executable, "-c", program, "--config", str(path)]
    serving = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert serving.stderr is not None
        assert serving.stderr.readline() == "serving tables\n"
        assert "6 messages, 6 rows, lag 0" in serving.stderr.readline()
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(timeout=20) == 0
    finally:
        serving.kill()
        serving.communicate()
    rows = sorted(tables.rows("iceberg", "referred"), key=lambda row: row["offset"])
    assert [row["publish_time"] for row in rows] == [1_000 * number for number in range(6)]
    tables.answer("disable", topic)
