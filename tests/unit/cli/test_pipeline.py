"""`danube pipeline` refuses wrong files before Spark starts."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from click.testing import CliRunner

from pydanube.cli.main import danube
from pydanube.pipelines import runner
from pydanube.pipelines.documents import read_definition
from pydanube.spark import brokers
from pydanube.spark.brokers import Patience
from tests.support.broker_process import free_ports

TEXT = (
    "pipeline: p\ncheckpoints: /c\nsources: {a: {topic: /default/a}}\nsinks:\n  - {name: s, %s}\n"
)


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_wrong_file_is_refused_with_its_line(tmp_path, command):
    file = tmp_path / "p.yml"
    file.write_text(TEXT % "from: b, format: noop")
    done = CliRunner().invoke(danube, ["pipeline", command, str(file)])
    assert done.exit_code == 2
    assert f"{file}:5: sinks[0].from: there is no b; there are a" in done.output


@pytest.mark.parametrize("command", ["plan", "run"])
def test_brokers_that_do_not_answer_are_named_before_spark_starts(tmp_path, command, monkeypatch):
    monkeypatch.setattr(brokers, "FIRST_LOOK", Patience(give_up_seconds=0.2))
    monkeypatch.setattr(runner, "start_spark", lambda *_: pytest.fail("Spark was started"))
    file = tmp_path / "p.yml"
    (port,) = free_ports(1)
    file.write_text(
        f"danube: {{url: 'http://127.0.0.1:{port}'}}\n" + TEXT % "from: a, format: noop"
    )
    done = CliRunner().invoke(danube, ["pipeline", command, str(file)])
    assert done.exit_code == 8, done.output
    assert f"no broker answers at http://127.0.0.1:{port}" in done.output
    assert "danube.url in the file" in done.output


def test_an_address_of_something_else_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "start_spark", lambda *_: pytest.fail("Spark was started"))
    file = tmp_path / "p.yml"
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)  # One without services.
        url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        file.write_text(f"danube: {{url: '{url}'}}\n" + TEXT % "from: a, format: noop")
        done = CliRunner().invoke(danube, ["pipeline", "plan", str(file)])
        server.stop(None).wait()
    assert done.exit_code != 0
    assert f"there is no broker with Flight at {url}" in done.output


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("topic: /default/a", True),
        ("topic: /default/a, options: {url: 'http://elsewhere:6650'}", False),
        ("format: delta, path: /d", False),
    ],
)
def test_brokers_are_looked_for_where_topics_are_used(part, whole):
    text = (TEXT % "from: a, format: noop").replace("topic: /default/a", part)
    definition, _ = read_definition(text, "p.yml", {})
    assert definition.needs_brokers is whole


def test_parameters_are_checked(tmp_path):
    file = tmp_path / "p.yml"
    file.write_text(TEXT % "from: a, format: noop")
    done = CliRunner().invoke(danube, ["pipeline", "plan", str(file), "--param", "x=1"])
    assert "x is given but not declared" in done.output
    done = CliRunner().invoke(danube, ["pipeline", "plan", str(file), "--param", "x"])
    assert "write it as NAME=VALUE" in done.output


def test_a_pipeline_that_never_ran_is_not_found(tmp_path):
    arguments = ["pipeline", "stop", "p", "--checkpoints", str(tmp_path)]
    assert CliRunner().invoke(danube, arguments).exit_code == 3
    done = CliRunner().invoke(danube, ["pipeline", "status", "--checkpoints", str(tmp_path)])
    assert (done.exit_code, done.output) == (0, "")


def test_a_project_is_written_into_a_new_directory(tmp_path):
    file, project = tmp_path / "p.yml", tmp_path / "project"
    file.write_text(TEXT % "from: a, format: danube, topic: /default/b")
    arguments = ["pipeline", "export-sdp", str(file), str(project)]
    done = CliRunner().invoke(danube, arguments)
    assert done.exit_code == 0, done.output
    assert f"spark-pipelines run --spec {project}/spark-pipeline.yml" in done.output
    assert (project / "transformations/pipeline.py").exists()
    done = CliRunner().invoke(danube, arguments)
    assert (done.exit_code, "is not empty" in done.output) == (2, True)


def test_what_a_project_cannot_hold_is_refused_with_its_line(tmp_path):
    file = tmp_path / "p.yml"
    file.write_text(TEXT % "from: a, format: delta, path: /t")
    done = CliRunner().invoke(danube, ["pipeline", "export-sdp", str(file), str(tmp_path / "d")])
    assert done.exit_code == 2
    assert f"{file}:5: sinks[0].format: delta needs a sink that commits from Python" in done.output
    assert not (tmp_path / "d").exists()
