"""`danube demo`: a broker with live traffic, in seconds, from one command."""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import click

from pydanube.cli.options import output_option
from pydanube.errors import DanubeError

if TYPE_CHECKING:
    from rich.table import Table

    from pydanube.broker.server import BrokerServer
    from pydanube.cli.demo_traffic import Account, Traffic

SHOW_EVERY_SECONDS = 0.5


@click.command("demo")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="End after so long.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Of the broker.  [default: a free one]"
)
@click.option("--data-dir", help="Keep the messages there.  [default: a directory of the moment]")
@click.option("--spark", is_flag=True, help="Let a pipeline on Spark total orders per minute.")
@output_option
def command(
    seconds: float | None, port: int, data_dir: str | None, spark: bool, output: str
) -> None:
    """See a broker with live traffic, in seconds.

    Starts a broker, a producer and two subscriptions: one Exclusive, one Shared by two consumers.
    Ends on Ctrl-C or after --seconds, and accounts for every message: exit code 0 says that all
    that was acknowledged was received.

    With --spark: orders flow through a data pipeline into a Delta table and a topic, wrong ones to
    dead letters, in about two minutes. It needs the extra spark and Java 17.
    """
    if spark:
        _demonstrate_spark(data_dir, output)
        return
    from pydanube.cli.output import show
    from pydanube.runtime.process import run

    with _directory(data_dir) as directory:
        account = run(_demonstrate(seconds, port, directory, quiet=output == "json"))
    if output == "json":
        show(account, output)
    else:
        click.echo(_summary(account))
    if account.lost or not account.broker_stopped_cleanly:
        raise click.exceptions.Exit(1)


def _demonstrate_spark(data_dir: str | None, output: str) -> None:
    from pydanube.cli.demo_spark import demonstrate, show_progress, summary
    from pydanube.cli.output import show
    from pydanube.runtime.process import unwound_by_sigterm

    with unwound_by_sigterm(), _directory(data_dir) as directory:
        account = demonstrate(directory, show_progress(output == "json"))
    if output == "json":
        show(account, output)
    else:
        click.echo(summary(account))
    if account.lost:
        raise click.exceptions.Exit(1)


@contextmanager
def _directory(given: str | None) -> Iterator[str]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="danube-demo-") as directory:
        yield directory


async def _demonstrate(
    seconds: float | None, port: int, directory: str, *, quiet: bool
) -> "Account":
    from pydanube.broker.config import standalone_config
    from pydanube.broker.server import BrokerServer
    from pydanube.cli.demo_traffic import Traffic
    from pydanube.cli.running import stopped_by_signals
    from pydanube.client.client import connect
    from pydanube.runtime.clock import SystemClock

    clock = SystemClock()
    ports = {"broker.ports.client": port, "broker.ports.admin": 0}
    config = standalone_config(directory, overrides=ports)
    async with stopped_by_signals() as stop:
        server = await BrokerServer.start(config)
        try:
            if not quiet:
                _introduce(server, directory)
            async with connect(f"http://127.0.0.1:{server.client_port}") as client:
                traffic = Traffic(client, clock)
                if seconds is not None:
                    clock.call_later(seconds, stop.set)
                async with _shown(traffic, quiet=quiet):
                    await traffic.run(stop)
        finally:
            stopped = await _stop(server)
    if traffic.failure is not None:
        click.echo(f"error: {traffic.failure}", err=True)
    return traffic.account(broker_stopped_cleanly=stopped)


async def _stop(server: "BrokerServer") -> bool:
    try:
        await server.stop()
    except DanubeError as error:
        click.echo(f"error: the broker did not stop cleanly: {error}", err=True)
        return False
    return True


def _introduce(server: "BrokerServer", directory: str) -> None:
    from pydanube.cli.demo_traffic import TOPIC

    url = f"http://127.0.0.1:{server.client_port}"
    click.echo(f"broker at {url}, administration at http://127.0.0.1:{server.admin_port}")
    click.echo(f"messages in {directory}; every acknowledgement below means fsynced")
    click.echo("join in from another terminal:")
    click.echo(f"  danube consume -s {url} -t {TOPIC} -m mine --start-position earliest")


@asynccontextmanager
async def _shown(traffic: "Traffic", *, quiet: bool) -> AsyncIterator[None]:
    """Show the account while the traffic runs: a live table on a terminal, lines elsewhere."""
    from pydanube.cli.running import report_failure
    from pydanube.runtime.tasks import TaskScope

    tasks = TaskScope(report_failure)
    if not quiet:
        show = _show_table if sys.stdout.isatty() else _show_lines
        tasks.start(show(traffic), "show the traffic")
    try:
        yield
    finally:
        await tasks.close()


async def _show_lines(traffic: "Traffic") -> None:
    from pydanube.runtime.clock import SystemClock

    while True:
        await SystemClock().sleep(SHOW_EVERY_SECONDS)
        click.echo(_line(traffic.account()))


async def _show_table(traffic: "Traffic") -> None:
    from rich.live import Live

    from pydanube.runtime.clock import SystemClock

    with Live(_table(traffic.account()), auto_refresh=False) as live:
        try:
            while True:
                await SystemClock().sleep(SHOW_EVERY_SECONDS)
                live.update(_table(traffic.account()), refresh=True)
        except asyncio.CancelledError:
            live.update(_table(traffic.account()), refresh=True)
            raise


def _line(account: "Account") -> str:
    received = ", ".join(f"{each.subscription} {each.received}" for each in account.subscriptions)
    return f"published {account.sent}, acknowledged {account.acknowledged}; received: {received}"


def _table(account: "Account") -> "Table":
    from rich.table import Table

    table = Table("", "messages", "by consumer", title="danube demo: Ctrl-C ends it")
    table.add_row("published", str(account.sent), "")
    table.add_row("acknowledged", str(account.acknowledged), "")
    for each in account.subscriptions:
        shares = ", ".join(f"{name} {count}" for name, count in sorted(each.by_consumer.items()))
        table.add_row(f"{each.subscription} ({each.type})", str(each.received), shares)
    return table


def _summary(account: "Account") -> str:
    received = ", ".join(f"{each.subscription} {each.received}" for each in account.subscriptions)
    stopped = "stopped cleanly" if account.broker_stopped_cleanly else "did not stop cleanly"
    return (
        f"sent {account.sent}, acknowledged {account.acknowledged}, received: {received}, "
        f"lost {account.lost}; broker {stopped}"
    )
