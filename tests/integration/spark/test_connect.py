"""Spark Connect: a real server whose executors are processes of their own, and its clients."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from deltalake import DeltaTable

from pydanube.tables.opening import open_tables_of
from pydanube.tables.settings import TableSetting
from tests.support import connect_client
from tests.support.connect_server import PROGRAM, connect_server
from tests.support.spark_topics import Topics
from tests.support.terminal import Terminal

MASTER = "local-cluster[1,2,1024]"
SECONDS_MAX = 600
TOPIC = "/default/connected"
ROWS = 1000
pytestmark = pytest.mark.timeout(1800)

EXPORTED = """\
pipeline: exported
danube: {url: "URL"}
spark: {master: "SERVER"}
checkpoints: ROOT/checkpoints
sources:
  numbers: {topic: TOPIC, options: {pollMs: 1}}
steps:
  - name: flat
    sql: >
      SELECT routing_key, payload, bigint(get_json_object(string(payload), '$.number')) AS n
      FROM numbers
  - {name: valid, from: flat, expect: [{name: no-three, check: "n % 10 <> 3", otherwise: drop}]}
  - {name: out, sql: "SELECT routing_key, payload FROM valid"}
sinks:
  - {name: copy, from: out, format: danube, topic: TOPIC-exported}
"""


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        words,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("server"), MASTER) as url:
        yield url


@pytest.fixture(scope="module")
def published(broker, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A topic with segments, a table and a tail beyond it."""
    topics = Topics(broker.url)
    topics.publish(TOPIC, range(900))
    topics.wait_sealed(TOPIC)
    table = f"{tmp_path_factory.mktemp('table')}/numbers"
    with open_tables_of(broker.url) as tables:
        tables.enable(TOPIC, TableSetting(format="delta", table=table))
        tables.backfill(TOPIC, report=lambda progress: None)
    topics.publish(TOPIC, range(900, ROWS))
    topics.close()
    return TOPIC


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("client")


@pytest.fixture(scope="module")
def found(broker, server: str, published: str, directory: Path) -> dict[str, Any]:
    """What a client of the server found; it runs once."""
    wanted = {"server": server, "url": broker.url, "topic": TOPIC, "directory": str(directory)}
    run(sys.executable, "-m", connect_client.__name__, json.dumps(wanted))
    result: dict[str, Any] = json.loads((directory / "found.json").read_text())
    return result


def test_a_session_of_a_server_has_the_settings_of_every_session(found):
    assert found["kind"] == "pyspark.sql.connect.session"
    assert found["zone"] == "UTC"


def test_what_a_server_has_from_its_start_is_refused_with_the_remedy(found):
    assert "spark.executor.cores belongs to the Spark Connect server" in found["fixed"]
    assert "start the server with --conf spark.executor.cores=7" in found["fixed"]


def test_topics_are_read_in_batches_by_executors_of_the_server(found, topics):
    assert found["read"] == list(range(ROWS))
    assert sorted(topics.numbers(f"{TOPIC}-batch")) == list(range(ROWS))


def test_history_is_read_by_the_servers_own_scan_and_a_table_goes_on_with_its_tail(found):
    assert found["history"] == list(range(ROWS))
    assert found["native"], "Spark did not read the segments itself"
    assert found["table"] == list(range(ROWS))


def test_a_stream_writes_each_row_once_and_listeners_of_the_client_hear_of_it(found, topics):
    assert sorted(topics.numbers(f"{TOPIC}-stream")) == list(range(ROWS))
    assert f'danube_spark_rows_total{{query="connected"}} {ROWS}' in found["metrics"]


def test_a_pipeline_commits_each_row_once_on_the_server_and_says_so_here(found, topics, directory):
    good = [number for number in range(ROWS) if number % 10 != 3]
    rows = DeltaTable(f"{directory}/lake").to_pyarrow_table().to_pylist()
    assert sorted(row["offset"] for row in rows) == good
    assert all(row["twice"] == 2 * row["n"] for row in rows)
    dead = topics.numbers(f"{TOPIC}-dlq")
    assert sorted(dead) == [number for number in range(ROWS) if number % 10 == 3]
    assert found["rows"] == [ROWS, len(good), len(dead), 0]
    assert found["broken"] == {"no-three/dead_letter": len(dead)}


def test_steps_that_keep_state_are_told_from_others_without_java_at_hand(found):
    assert (found["stateful"], found["state"]) == (False, True)


def test_what_fails_a_batch_on_the_server_is_told_in_its_own_words(found):
    assert "refused/never failed in batch 0" in found["failure"]
    assert f"{ROWS} rows break the expectation never, whose rule is to fail" in found["failure"]
    assert "Traceback" not in found["failure"]


def test_a_pipeline_on_the_server_stops_between_batches_that_follow_each_other(found):
    state, error, rows = found["stopped"]
    assert (state, error) == ("STOPPED", None)
    assert rows % connect_client.ROWS_AT_A_TIME == 0
    assert rows < ROWS


def test_an_exported_pipeline_runs_as_a_declarative_one(
    broker, topics, server, published, tmp_path
):
    file = tmp_path / "exported.yml"
    text = EXPORTED.replace("URL", broker.url).replace("SERVER", server)
    file.write_text(text.replace("ROOT", str(tmp_path)).replace("TOPIC", TOPIC))
    done = run(PROGRAM, "pipeline", "export-sdp", str(file), str(tmp_path / "project"))
    assert "Run is COMPLETED" in run("sh", "-c", done.stdout).stdout
    kept = sorted(topics.numbers(f"{TOPIC}-exported"))
    assert kept == [number for number in range(ROWS) if number % 10 != 3]


def test_the_doctor_looks_at_a_server_and_its_workers(broker, server):
    done = run(
        *(PROGRAM, "doctor", "-s", broker.url, "--spark", "--master", server, "--output", "json"),
        PATH="/nowhere",
        JAVA_HOME="",
    )
    checks = {each["check"]: each for each in json.loads(done.stdout)}
    assert sys.executable in checks["workers"]["detail"]
    assert checks["workers"]["detail"].endswith(f" in {Path(pyspark.__file__).parent.resolve()}")
    assert checks["spark.python.worker.killOnIdleTimeout"]["state"] == "ok"


def test_the_shell_of_a_server_runs_without_java(broker, server, published):
    frame = f'spark.read.format("danube").options(url="{broker.url}", topic="{TOPIC}").load()'
    words = [PROGRAM, "spark", "shell", "--master", server]
    with Terminal(words, PATH="/nowhere", JAVA_HOME="") as shell:
        shell.until("Client connected to the Spark Connect server", SECONDS_MAX)
        shell.until(">>> ", SECONDS_MAX)
        shell.type(f'print("counted", {frame}.count() + 1)')
        shell.until(f"counted {ROWS + 1}", SECONDS_MAX)
        shell.type('print("zone", spark.conf.get("spark.sql.session.timeZone") * 2)')
        shell.until("zone UTCUTC", SECONDS_MAX)
        assert shell.leave(">>> ", SECONDS_MAX) == 0


def test_the_server_listens_on_loopback_alone(server):
    port = int(server.rpartition(":")[2])
    (java,) = [
        each
        for each in psutil.process_iter(["cmdline"])
        if f"spark.connect.grpc.binding.port={port}" in (each.info["cmdline"] or ())
    ]
    listening = [each for each in java.net_connections() if each.status == psutil.CONN_LISTEN]
    assert listening
    assert {each.laddr.ip.removeprefix("::ffff:") for each in listening} == {"127.0.0.1"}
