"""A Spark session with the settings that the data source needs, and loopback ports alone."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydanube.errors import NotSupported
from pydanube.spark.connect import open_session
from pydanube.spark.home import linked_home
from pydanube.spark.java import choose_java
from pydanube.spark.session_settings import (
    SESSION_SETTINGS,
    SETTINGS,
    is_connect_url,
    promised_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("pydanube.spark")


def session(
    name: str = "danube",
    master: str = "local[*,4]",
    *,
    row_bytes_max: int | str | None = None,
    **conf: str | int | bool,
) -> "SparkSession":
    """Start Spark, or return the session that runs.

    `conf` are Spark's settings, dots written as two underscores or given in a dict:
    `session("orders", **{"spark.sql.shuffle.partitions": 4})`. They win over the ones set here.
    With a local master everything listens on loopback alone. With `sc://host:port` Spark is that
    of a Spark Connect server: settings that it has from its start cannot be given here.

    Before it hands a row to Python, Spark measures the batch so far, which can take a quarter of
    its time. `row_bytes_max`, such as "16k", promises that no row is larger: batches then have
    so many rows that they need not be measured. Much larger ones may be more than Java can hold.
    """
    given = promised_rows(row_bytes_max) | settings_of(conf)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NotSupported("PySpark is not installed: pip install 'pydanube[spark]'") from error
    if is_connect_url(master):
        return open_session(master, SESSION_SETTINGS, given)
    for variable, value in environment_for(master, os.environ).items():
        os.environ[variable] = value
    builder = SparkSession.builder.appName(name).master(master)
    for key, setting in {**SETTINGS, **given}.items():
        builder = builder.config(key, setting)
    with _home_while_java_starts(master):
        spark = builder.getOrCreate()
    _leave_sigterm_to_python(spark)
    return spark


def quiet_settings(master: str) -> dict[str, str]:
    """Return what keeps Spark's own words from a command's; a server's are its own affair."""
    if is_connect_url(master):
        return {}
    return {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}


def environment_for(master: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what must be set before Java starts; what the user has set stays."""
    wanted = {
        # Workers must be this Python, which has this package.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if master.startswith("local"):
        # Else the UI listens on all addresses.
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    found = {name: environment.get(name, value) for name, value in wanted.items()}
    found["JAVA_HOME"] = choose_java(environment, cache_of(environment))
    return found


def home_for(master: str, environment: Mapping[str, str]) -> Path | None:
    """Return a SPARK_HOME whose Python processes start sooner; None where there is none.

    Only for masters whose processes run on this machine: those of others have homes of their own.
    """
    if not master.startswith("local"):
        return None
    try:
        return linked_home(cache_of(environment))
    except OSError as error:
        _log.debug("Spark's Python processes compile PySpark whenever they start: %s", error)
        return None


def cache_of(environment: Mapping[str, str]) -> Path:
    """Return where what Spark is started with lies: not where others may write, for it is run."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pydanube"


@contextmanager
def _home_while_java_starts(master: str) -> Iterator[None]:
    """Name the home to Java alone: programs that are started later may have another PySpark."""
    home = None if "SPARK_HOME" in os.environ else home_for(master, os.environ)
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        os.environ.pop("SPARK_HOME", None)


def _leave_sigterm_to_python(spark: "SparkSession") -> None:
    """Have a Java that this process has started ignore SIGTERM: it ends when this process does.

    Service managers and `timeout` send the signal to both, and Java would cut the batch that is to
    be finished. Where Java has started Python, as `spark-submit` does, the signal is Java's.
    """
    gateway = spark.sparkContext._gateway
    if gateway is not None and getattr(gateway, "proc", None) is not None:
        signals = gateway.jvm.sun.misc
        signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)


def settings_of(conf: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Return settings as Spark writes them."""
    return {
        key.replace("__", "."): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in conf.items()
    }
