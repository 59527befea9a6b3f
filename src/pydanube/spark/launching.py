"""Spark's own programs with the settings of `session`: shell, scripts, a Spark Connect server."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydanube.errors import InvalidRequest
from pydanube.spark.session_settings import SESSION_SETTINGS, SETTINGS, is_connect_url
from pydanube.spark.sessions import environment_for, home_for

DEFAULT_MASTER = "local[*,4]"
CONNECT_PORT = 15002
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


class Launch(NamedTuple):
    """What to run, and in which environment."""

    command: list[str]
    environment: dict[str, str]


def launch(
    program: Literal["pyspark", "spark-submit"],
    environment: Mapping[str, str],
    *,
    master: str = DEFAULT_MASTER,
    conf: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> Launch:
    """Return how one of Spark's programs is started; `conf` (name=value) wins over our settings."""
    import pyspark

    given = dict(_setting(each) for each in conf)
    package = Path(pyspark.__file__).parent
    if is_connect_url(master):
        started = str(package / "shell.py") if program == "pyspark" else None
        return _connected(master, given, environment, arguments, started)
    settings = {**SETTINGS, **given}
    flags = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    home = home_for(master, environment) or package
    return Launch(
        [str(home / "bin" / program), "--master", master, *flags, *arguments],
        # Another Spark that the environment names would not be the one whose settings these are.
        {**environment, **environment_for(master, environment), "SPARK_HOME": str(home)},
    )


def _connected(
    url: str,
    given: Mapping[str, str],
    environment: Mapping[str, str],
    arguments: Sequence[str],
    started: str | None,
) -> Launch:
    """Return how a program of a Spark Connect server is started: it is plain Python, without Java.

    Sessions take the server and their settings from the environment.
    """
    for name, value in given.items():
        if not name.startswith("spark.sql."):
            raise InvalidRequest(
                f"{name} belongs to the Spark Connect server: start it with --conf {name}={value}"
            )
    settings = json.dumps({**SESSION_SETTINGS, **given})
    shell = {"PYTHONSTARTUP": started, "SPARK_CONNECT_MODE_ENABLED": "1"} if started else {}
    return Launch(
        [sys.executable, *arguments],
        {
            **environment,
            "SPARK_REMOTE": url,
            "PYSPARK_REMOTE_INIT_CONF_LEN": "1",
            "PYSPARK_REMOTE_INIT_CONF_0": settings,
            **shell,
        },
    )


def launch_server(
    environment: Mapping[str, str],
    *,
    master: str = DEFAULT_MASTER,
    port: int = CONNECT_PORT,
    conf: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> Launch:
    """Return how a Spark Connect server is started, in the foreground."""
    if is_connect_url(master):
        raise InvalidRequest(
            f"{master} is a Spark Connect server itself; a new one runs on local[*], spark://, "
            "yarn or k8s://"
        )
    bound = f"spark.connect.grpc.binding.port={port}"
    whole = ("--class", _SERVER, *arguments)
    return launch("spark-submit", environment, master=master, conf=(bound, *conf), arguments=whole)


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise InvalidRequest(f"{text!r} is no setting; write it as spark.name=value")
    return name, value
