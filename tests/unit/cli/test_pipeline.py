"""`danube pipeline` refuses wrong files before Spark starts."""

import pytest
from click.testing import CliRunner

from pydanube.cli.main import danube

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
