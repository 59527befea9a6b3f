"""A home of links to PySpark: what it holds, how it is mended, and who is told of it."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pyspark
import pytest

from pydanube.spark import home, sessions
from pydanube.spark.home import Installed, linked_home, plan_links

PACKAGE = Path(pyspark.__file__).parent
FOUND = Installed(Path("/site/pyspark"), Path("/site/py4j"), ("py4j-1-src.zip",))


def test_directories_with_the_names_of_archives_lead_to_the_packages() -> None:
    links = plan_links(FOUND)
    assert links["python/lib/pyspark.zip/pyspark"] == Path("/site/pyspark")
    assert links["python/lib/py4j-1-src.zip/py4j"] == Path("/site/py4j")
    assert links["jars"] == Path("/site/pyspark/jars")
    assert links["conf"] == Path("/site/pyspark/conf"), "settings of the user's"
    assert links["python/pyspark"] == Path("/site/pyspark/python/pyspark"), "what the shell runs"
    assert not {"work", "logs"} & set(links), "Spark makes them itself, and not through a link"


def test_where_py4j_lies_elsewhere_its_archive_stays() -> None:
    links = plan_links(FOUND._replace(py4j=None))
    archive = "python/lib/py4j-1-src.zip"
    assert links[archive] == Path("/site/pyspark") / archive
    assert f"{archive}/py4j" not in links


def whole(found: Path | None) -> bool:
    """Tell whether a home holds all links, and nothing else."""
    assert found is not None
    known = home.installed()
    assert known is not None
    wanted = {found / place: str(target) for place, target in plan_links(known).items()}
    held = {each: os.readlink(each) for each in found.rglob("*") if each.is_symlink()}
    return held == wanted and (found / "bin/spark-submit").samefile(PACKAGE / "bin/spark-submit")


def test_a_home_is_made_once_and_found_again(tmp_path: Path) -> None:
    made = linked_home(tmp_path)
    assert whole(made)
    assert made is not None
    before = {each: each.lstat().st_ino for each in made.rglob("*")}
    assert linked_home(tmp_path) == made
    assert {each: each.lstat().st_ino for each in made.rglob("*")} == before


@pytest.mark.parametrize("place", ["jars", "python/lib/pyspark.zip/pyspark"])
@pytest.mark.parametrize("damage", ["gone", "elsewhere", "file"])
def test_a_home_that_was_damaged_is_mended(tmp_path: Path, place: str, damage: str) -> None:
    made = linked_home(tmp_path)
    assert made is not None
    (made / place).unlink()
    if damage == "elsewhere":
        (made / place).symlink_to("/nowhere")
    elif damage == "file":
        (made / place).write_text("no link")
    assert not whole(made)
    assert linked_home(tmp_path) == made
    assert whole(made)


def test_many_may_make_it_at_once(tmp_path: Path) -> None:
    hands = 8
    together = Barrier(hands, timeout=30)

    def make(_: int) -> Path | None:
        together.wait()
        return linked_home(tmp_path)

    with ThreadPoolExecutor(hands) as pool:
        made = set(pool.map(make, range(hands)))
    assert len(made) == 1
    assert whole(made.pop())


def test_another_pyspark_has_another_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = linked_home(tmp_path)
    monkeypatch.setattr(home, "installed", lambda: FOUND)
    other = linked_home(tmp_path)
    assert other is not None
    assert other != made
    assert os.readlink(other / "jars") == "/site/pyspark/jars"


@pytest.mark.parametrize("kind", ["client", "distribution", "archive"])
def test_a_pyspark_that_is_no_whole_spark_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    package = tmp_path / "site" / "pyspark"
    (package / "bin").mkdir(parents=True)
    if kind == "distribution":
        (package / "bin/spark-submit").write_text("#!/bin/sh\n")
        (package / "spark-distribution").mkdir()
    elif kind == "archive":
        package = tmp_path / "pyspark.zip" / "pyspark"
    monkeypatch.setattr(pyspark, "__file__", str(package / "__init__.py"))
    assert linked_home(tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()
    assert not home.is_home_of_package(package)


def test_only_masters_on_this_machine_get_it(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    for master in ("local", "local[2,4]", "local-cluster[1,2,1024]"):
        assert whole(sessions.home_for(master, environment))
    for master in ("spark://host:7077", "yarn", "k8s://host", "sc://host:15002"):
        assert sessions.home_for(master, environment) is None


def test_where_it_cannot_be_made_spark_goes_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pydanube").write_text("in the way")
    with caplog.at_level(logging.DEBUG, "pydanube.spark"):
        assert sessions.home_for("local", {"XDG_CACHE_HOME": str(tmp_path)}) is None
    (said,) = caplog.records
    assert said.levelno == logging.DEBUG
    assert str(tmp_path / "pydanube") in said.getMessage()


def test_it_is_named_while_java_starts_and_not_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with sessions._home_while_java_starts("local"):
        assert whole(Path(os.environ["SPARK_HOME"]))
    assert "SPARK_HOME" not in os.environ
    with pytest.raises(InterruptedError), sessions._home_while_java_starts("local"):
        raise InterruptedError
    assert "SPARK_HOME" not in os.environ
    with sessions._home_while_java_starts("spark://host:7077"):
        assert "SPARK_HOME" not in os.environ


def test_a_home_that_the_user_names_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with sessions._home_while_java_starts("local"):
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert not list(tmp_path.iterdir())
