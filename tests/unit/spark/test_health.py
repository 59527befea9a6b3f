"""What the doctor finds, and how Spark's programs are started."""

import json
import sys
from pathlib import Path

import pyspark
import pytest

from pydanube.errors import InvalidRequest
from pydanube.spark import health
from pydanube.spark.home import linked_home
from pydanube.spark.launching import launch, launch_server
from pydanube.spark.session_settings import SESSION_SETTINGS, SETTINGS

PACKAGE = Path(pyspark.__file__).parent


def findings(tmp_path: Path, **environment: str) -> dict[str, health.Finding]:
    given = {"PATH": "/usr/bin:/bin", **environment}
    return {each.check: each for each in health.examine(given, tmp_path)}


def test_a_machine_that_has_everything_is_well(tmp_path):
    found = findings(tmp_path)
    assert {each.state for each in found.values()} == {"ok"}, found
    assert {"pyspark", "java", "PYSPARK_PYTHON", "SPARK_LOCAL_IP", "format danube"} <= set(found)


def test_what_the_environment_sets_otherwise_is_told(tmp_path):
    found = findings(
        tmp_path, PYSPARK_PYTHON="/usr/bin/other", SPARK_LOCAL_IP="10.0.0.1", SPARK_HOME="/opt/old"
    )
    warned = {name for name, each in found.items() if each.state == "warning"}
    assert warned == {"PYSPARK_PYTHON", "SPARK_LOCAL_IP", "SPARK_HOME"}
    assert "/usr/bin/other" in found["PYSPARK_PYTHON"].detail


@pytest.mark.parametrize("by_links", [True, False])
def test_a_home_that_is_the_packages_own_is_well(tmp_path, by_links):
    home = linked_home(tmp_path) if by_links else PACKAGE
    found = findings(tmp_path, SPARK_HOME=str(home))["SPARK_HOME"]
    assert (found.state, found.detail) == ("ok", f"that of the package pyspark, by way of {home}")


def test_a_machine_where_links_cannot_be_made_is_told_what_it_costs(tmp_path):
    (tmp_path / "spark").write_text("in the way")
    found = findings(tmp_path)["SPARK_HOME"]
    assert found.state == "warning"
    assert "first use of a session takes seconds longer" in found.detail
    assert str(tmp_path / "spark") in found.detail


def test_defaults_that_contradict_our_settings_are_told(tmp_path):
    name = "spark.sql.session.timeZone"
    (tmp_path / "spark-defaults.conf").write_text(f"# ours\n{name}  Europe/Vienna\nspark.x y\n\n")
    found = findings(tmp_path, SPARK_CONF_DIR=str(tmp_path))
    assert "Europe/Vienna" in found[name].detail
    assert found[name].state == "warning"


def test_a_machine_without_java_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("pydanube.spark.java._packaged_java", lambda: None)
    found = findings(tmp_path, PATH="")
    assert found["java"].state == "failed"
    assert "openjdk-17" in found["java"].detail


def test_a_package_that_is_missing_or_too_old_fails(tmp_path, monkeypatch):
    others = {"pyarrow": "26.0.1", "deltalake": "1.6.6", "grpcio-status": "1.85.0"}
    installed = {"pyspark": "3.5.1", "pandas": "3.1.0", **others}
    monkeypatch.setattr(health, "version", installed.__getitem__)
    found = findings(tmp_path)
    assert found["pyspark"].state == "failed"
    assert found["pandas"].state == "warning"


def test_a_session_is_compared_setting_by_setting():
    assert {each.state for each in health.examine_session(SETTINGS.get)} == {"ok"}
    (wrong,) = [
        each
        for each in health.examine_session({**SETTINGS, "spark.sql.session.timeZone": "CET"}.get)
        if each.state != "ok"
    ]
    assert (wrong.state, wrong.check) == ("failed", "spark.sql.session.timeZone")
    assert "UTC" in wrong.detail


def test_programs_are_started_with_the_settings_of_a_session(tmp_path):
    wanted = launch(
        "spark-submit",
        {"PATH": "/usr/bin:/bin", "SPARK_HOME": "/opt/other", "XDG_CACHE_HOME": str(tmp_path)},
        conf=["spark.sql.session.timeZone=CET", "spark.a=b=c"],
        arguments=["job.py", "--conf"],
    )
    assert Path(wanted.command[0]).samefile(PACKAGE / "bin/spark-submit")
    assert wanted.command[1:3] == ["--master", "local[*,4]"]
    assert wanted.command[-2:] == ["job.py", "--conf"]
    settings = set(wanted.command)
    assert {"spark.sql.session.timeZone=CET", "spark.a=b=c"} <= settings
    assert "spark.sql.python.filterPushdown.enabled=true" in settings
    assert "spark.sql.session.timeZone=UTC" not in settings
    assert wanted.environment["PYSPARK_PYTHON"] == sys.executable
    assert wanted.environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    home = Path(wanted.environment["SPARK_HOME"])
    assert Path(wanted.command[0]).is_relative_to(home)
    assert home.is_relative_to(tmp_path), "a home whose processes start sooner"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://host", "local[2]"])
def test_elsewhere_and_without_links_programs_run_from_the_package_itself(tmp_path, master):
    (tmp_path / "pydanube").mkdir()
    if master.startswith("local"):
        (tmp_path / "pydanube" / "spark").write_text("in the way")
    environment = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path)}
    wanted = launch("spark-submit", environment, master=master, arguments=["job.py"])
    assert wanted.command[0] == str(PACKAGE / "bin/spark-submit")
    assert wanted.environment["SPARK_HOME"] == str(PACKAGE)


def test_a_setting_without_a_value_is_refused():
    with pytest.raises(InvalidRequest, match=r"spark\.name=value"):
        launch("pyspark", {"PATH": "/usr/bin"}, conf=["spark.x"])


def test_programs_of_a_spark_connect_server_need_no_java():
    environment = {"PATH": "/nowhere", "HOME": "/nowhere"}
    settings = ["spark.sql.session.timeZone=CET"]
    wanted = launch(
        "spark-submit",
        environment,
        master="sc://127.0.0.1:15002",
        conf=settings,
        arguments=["job.py", "1"],
    )
    assert wanted.command == [sys.executable, "job.py", "1"]
    assert wanted.environment["SPARK_REMOTE"] == "sc://127.0.0.1:15002"
    given = json.loads(wanted.environment["PYSPARK_REMOTE_INIT_CONF_0"])
    assert given["spark.sql.session.timeZone"] == "CET"
    assert set(given) == set(SESSION_SETTINGS)
    with pytest.raises(InvalidRequest, match=r"start it with --conf spark\.executor\.cores=2"):
        launch("pyspark", environment, master="sc://a:1", conf=["spark.executor.cores=2"])


def test_a_spark_connect_server_listens_on_loopback_and_runs_on_a_spark_of_its_own():
    wanted = launch_server({"PATH": "/usr/bin:/bin"}, port=15003, conf=["spark.ui.enabled=false"])
    words = " ".join(wanted.command)
    assert "--conf spark.connect.grpc.binding.address=127.0.0.1" in words
    assert "--conf spark.connect.grpc.binding.port=15003" in words
    assert words.endswith("--class org.apache.spark.sql.connect.service.SparkConnectServer")
    with pytest.raises(InvalidRequest, match="is a Spark Connect server itself"):
        launch_server({"PATH": "/usr/bin"}, master="sc://127.0.0.1:15002")
