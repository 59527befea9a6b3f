"""`danube broker`, also known as `danube-broker`: run a broker in this process."""

import os
from typing import TYPE_CHECKING, TextIO

import click

from pydanube.cli.lazy import GuardedCommand

if TYPE_CHECKING:
    from pydanube.observability.logging import LogFormat, LogLevel


@click.command("broker", cls=GuardedCommand)
@click.option(
    "--mode",
    type=click.Choice(["cluster", "standalone", "edge"]),
    help="Default: standalone with --data-dir and without --config-file, else cluster.",
)
@click.option("--config-file", type=click.File(encoding="utf-8"), help="YAML, for --mode cluster.")
@click.option("--broker-addr", metavar="IP:PORT", help="Listen here for clients.")
@click.option("--admin-addr", metavar="IP:PORT", help="Listen here for administration.")
@click.option("--prom-exporter", metavar="IP:PORT", help="Serve metrics and health here.")
@click.option("--raft-addr", metavar="IP:PORT", help="Its port is for consensus between brokers.")
@click.option("--advertised-addr", metavar="URL", help="The address that clients are told.")
@click.option("--connect-url", metavar="URL", help="The address of a proxy before this broker.")
@click.option("--data-dir", metavar="DIR", help="Where messages and metadata are kept.")
@click.option("--seed-nodes", metavar="A,B,C", help="Raft addresses of all first members.")
@click.option("--join", is_flag=True, help="Wait to be added to a running cluster.")
@click.option("--insecure", is_flag=True, help="Listen beyond this machine without credentials.")
@click.option(
    "--engine",
    type=click.Choice(["http2", "grpcio"]),
    default="http2",
    show_default=True,
    help="What carries the calls.",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def command(
    mode: str | None,
    config_file: TextIO | None,
    engine: str,
    log_format: "LogFormat",
    log_level: "LogLevel",
    **flags: str | bool | None,
) -> None:
    """Run a broker.

    `danube broker --data-dir ./danube-data` starts one on this machine: clients at
    127.0.0.1:6650, administration at 127.0.0.1:50051. SIGTERM and Ctrl-C stop it cleanly.
    """
    import msgspec

    from pydanube.model.arrow import without

    with without("numpy", "pandas"):  # Clients soon give a broker up that takes long to restart.
        from pydanube.broker.flags import BrokerFlags, config_from_flags
        from pydanube.broker.server import run_broker

    if mode is None:
        mode = "standalone" if flags["data_dir"] and config_file is None else "cluster"
    name = None if config_file is None else config_file.name
    given = msgspec.convert({**flags, "mode": mode, "config_file": name}, BrokerFlags)
    text = None if config_file is None else config_file.read()
    config = config_from_flags(given, os.environ, text)
    run_broker(config, engine=engine, log_format=log_format, log_level=log_level)
