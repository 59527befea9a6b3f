"""`danube doctor`: what is wrong with this machine, before anybody looks for it in a program."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pydanube.cli.options import output_option, service_addr_option

if TYPE_CHECKING:
    from pydanube.spark.health import Finding

_BROKER_SECONDS = 5.0
_MASTER = "local[*,4]"


@click.command("doctor")
@service_addr_option
@output_option
@click.option("--spark", is_flag=True, help="Start Spark, too, and compare its settings.")
def command(service_addr: str, output: str, spark: bool) -> None:
    """Check packages, Java, environment and broker. Exit code 1 if something must be mended."""
    from pydanube.cli.output import show
    from pydanube.spark.health import examine

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pydanube"
    found = [_broker(service_addr), *examine(os.environ, cache)]
    if spark and all(each.state != "failed" for each in found[1:]):
        found += _session()
    show(found, output)
    if any(each.state == "failed" for each in found):
        raise click.exceptions.Exit(1)


def _broker(url: str) -> "Finding":
    from pydanube.errors import DanubeError
    from pydanube.spark.health import Finding
    from pydanube.wire.flight.blocking import BlockingFlight, Credentials

    try:
        connection = BlockingFlight(url, Credentials(), _BROKER_SECONDS)
        try:
            topics = len(connection.topics())
        finally:
            connection.close()
    except DanubeError as error:
        remedy = "start one (danube broker), or name it with --service-addr"
        return Finding(check="broker", state="failed", detail=f"{error}; {remedy}")
    return Finding(check="broker", state="ok", detail=f"{url}, {topics} topics")


def _session() -> "list[Finding]":
    from pydanube.spark.health import examine_session
    from pydanube.spark.sessions import session

    quiet = {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    running = session("doctor", _MASTER, **quiet)
    try:
        return examine_session(lambda name: running.conf.get(name, None))
    finally:
        running.stop()
