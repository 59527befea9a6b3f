"""What `danube doctor` looks at before Spark is blamed: packages, Java, environment, settings."""

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from pydanube.errors import DanubeError
from pydanube.spark.home import is_home_of_package, linked_home
from pydanube.spark.java import choose_java, java_version
from pydanube.spark.session_settings import SETTINGS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SPARK_RELEASE = "4.3."
_PACKAGES = ("pyspark", "pyarrow", "pandas", "deltalake", "grpcio-status")


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    check: str
    state: Literal["ok", "warning", "failed"]
    detail: str


def examine(environment: Mapping[str, str], cache: Path) -> list[Finding]:
    """Look at what a session needs, without starting Spark."""
    return [
        *(_package(name) for name in _PACKAGES),
        _java(environment, cache),
        _python(environment),
        _loopback(environment),
        _home(environment, cache),
        *_defaults(environment),
        _source(),
    ]


def examine_session(read_setting: Callable[[str], str | None]) -> list[Finding]:
    """Compare a running session with the settings that the data source needs."""
    found = []
    for name, wanted in SETTINGS.items():
        value = read_setting(name)
        found.append(
            Finding(check=name, state="ok", detail=wanted)
            if value == wanted
            else Finding(
                check=name, state="failed", detail=f"is {value}; set it to {wanted} at the start"
            )
        )
    return found


def examine_workers(running: "SparkSession") -> list[Finding]:
    """Look whether Spark knows the data source, and what its workers run."""
    from pyspark.errors import PySparkException

    try:
        _ = running.read.format("danube").option("topic", "/default/doctor").load().schema
        answers = running.range(1).mapInArrow(_tell_of_worker, "detail string").toArrow()
    except PySparkException as error:
        words = str(error).strip().splitlines()[-1]
        remedy = "install pydanube[spark] for the Python of Spark's driver and workers"
        return [Finding(check="workers", state="failed", detail=f"{words}; {remedy}")]
    return [Finding(check="workers", state="ok", detail=answers.to_pylist()[0]["detail"])]


def _tell_of_worker(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa
    import pyspark

    for _ in batches:
        # What is loaded and what is installed may differ: Spark brings an archive of its own.
        place = Path(pyspark.__file__).parent.resolve()
        own = f"{sys.executable}, pydanube {version('pydanube')}"
        words = f"{own}, pyspark {pyspark.__version__} in {place}"
        yield pa.record_batch({"detail": [words]})


def _package(name: str) -> Finding:
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(
            check=name, state="failed", detail="not installed: pip install 'pydanube[spark]'"
        )
    if name == "pyspark" and not found.startswith(SPARK_RELEASE):
        return Finding(
            check=name,
            state="failed",
            detail=f"{found}; {SPARK_RELEASE}x is needed: pip install 'pydanube[spark]'",
        )
    if name == "pandas" and int(found.partition(".")[0]) >= 3:
        return Finding(
            check=name, state="warning", detail=f"{found}; PySpark supports releases before 3"
        )
    return Finding(check=name, state="ok", detail=found)


def _java(environment: Mapping[str, str], cache: Path) -> Finding:
    try:
        home = choose_java(environment, cache)
    except DanubeError as error:
        return Finding(check="java", state="failed", detail=str(error))
    return Finding(
        check="java", state="ok", detail=f"{java_version(Path(home) / 'bin/java')}, {home}"
    )


def _python(environment: Mapping[str, str]) -> Finding:
    given = environment.get("PYSPARK_PYTHON")
    if given in (None, sys.executable):
        return Finding(check="PYSPARK_PYTHON", state="ok", detail=given or "set by the session")
    return Finding(
        check="PYSPARK_PYTHON",
        state="warning",
        detail=f"is {given}; workers run that Python, which must have this package, too",
    )


def _loopback(environment: Mapping[str, str]) -> Finding:
    given = environment.get("SPARK_LOCAL_IP")
    if given is None or given.startswith("127.") or given == "::1":
        return Finding(check="SPARK_LOCAL_IP", state="ok", detail=given or "set by the session")
    return Finding(
        check="SPARK_LOCAL_IP",
        state="warning",
        detail=f"is {given}; Spark's ports can be reached from there, also with a local master",
    )


def _home(environment: Mapping[str, str], cache: Path) -> Finding:
    given = environment.get("SPARK_HOME")
    if given is not None and not is_home_of_package(Path(given)):
        return Finding(
            check="SPARK_HOME",
            state="warning",
            detail=f"is {given}; that Spark is started instead of the package's: unset it, or see "
            f"that it is a {SPARK_RELEASE}x",
        )
    try:
        home = linked_home(cache) if given is None else given
    except OSError as error:
        return Finding(
            check="SPARK_HOME",
            state="warning",
            detail="that of the package pyspark; the first use of a session takes seconds longer, "
            f"since links to the package cannot be made: {error}",
        )
    by = f", by way of {home}" if home is not None else ""
    return Finding(check="SPARK_HOME", state="ok", detail=f"that of the package pyspark{by}")


def _defaults(environment: Mapping[str, str]) -> list[Finding]:
    """Find what spark-defaults.conf says about our settings; a session overrules it."""
    directory = environment.get("SPARK_CONF_DIR")
    if directory is None:
        return []
    try:
        lines = (Path(directory) / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    given = dict(line.split(None, 1) for line in lines if len(line.split(None, 1)) == 2)
    return [
        Finding(
            check=name,
            state="warning",
            detail=f"spark-defaults.conf says {given[name].strip()}; pydanube.spark.session sets "
            f"{wanted}",
        )
        for name, wanted in SETTINGS.items()
        if name in given and given[name].strip() != wanted
    ]


def _source() -> Finding:
    try:
        found = import_module("pyspark_danube").DefaultSource
    except Exception as error:  # noqa: BLE001  Whatever it is, Spark would not find the source.
        return Finding(check="format danube", state="failed", detail=f"cannot be loaded: {error}")
    return Finding(check="format danube", state="ok", detail=f"{found.__module__}")
