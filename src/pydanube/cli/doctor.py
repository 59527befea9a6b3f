"""`danube doctor`: what is wrong with this machine, before anybody looks for it in a program."""

import os
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
@click.option(
    "--master",
    default=_MASTER,
    show_default=True,
    help="The Spark to look at, with --spark; sc://host:port is a Spark Connect server.",
)
def command(service_addr: str, output: str, spark: bool, master: str) -> None:
    """Check packages, Java, environment and broker. Exit code 1 if something must be mended."""
    from pydanube.cli.output import show
    from pydanube.spark.health import examine
    from pydanube.spark.session_settings import is_connect_url
    from pydanube.spark.sessions import cache_of

    # Whoever asks a Spark Connect server needs no Java.
    unneeded = ("java",) if spark and is_connect_url(master) else ()
    examined = examine(os.environ, cache_of(os.environ))
    looked_at = [each for each in examined if each.check not in unneeded]
    found = [_broker(service_addr), *looked_at]
    if spark and all(each.state != "failed" for each in found[1:]):
        found += _session(master)
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


def _session(master: str) -> "list[Finding]":
    from pydanube.errors import DanubeError
    from pydanube.spark.ending import stop_session
    from pydanube.spark.health import Finding, examine_session, examine_workers
    from pydanube.spark.sessions import quiet_settings, session

    try:
        running = session("doctor", master, **quiet_settings(master))
    except DanubeError as error:
        return [Finding(check="spark", state="failed", detail=str(error))]
    try:
        settings = examine_session(lambda name: running.conf.get(name, None))
        return [*examine_workers(running), *settings]
    finally:
        stop_session(running)
