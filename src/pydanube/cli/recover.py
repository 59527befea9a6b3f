"""`danube recover`: bring back into the metadata what journal and segments have beyond them."""

import os
from typing import TextIO

import click

from pydanube.cli.lazy import GuardedCommand
from pydanube.cli.options import output_option


@click.command("recover", cls=GuardedCommand)
@click.option("--data-dir", metavar="DIR", help="Of a standalone broker.")
@click.option("--config-file", type=click.File(encoding="utf-8"), help="Of a broker of a cluster.")
@click.option("--apply", is_flag=True, help="Write what is missing; without it, only look.")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="ID=/NAMESPACE/TOPIC",
    help="Call a topic so whose name nothing tells. May be repeated.",
)
@click.option(
    "--doubtful",
    is_flag=True,
    help="Bring also back what may have been deleted, of a journal of version 0.1.",
)
@output_option
def command(
    data_dir: str | None,
    config_file: TextIO | None,
    apply: bool,
    names: tuple[str, ...],
    doubtful: bool,
    output: str,
) -> None:
    """Bring back what journal and segments have beyond the metadata.

    For a stopped broker whose metadata are an older copy. Look first, without --apply: nothing is
    changed. With it, topics, subscriptions and segments get entries again, and topics that share
    an id are told apart; journal files that are written anew are kept in wal/quarantine. Nothing
    is deleted.
    """
    from pydanube.broker.flags import BrokerFlags, config_from_flags
    from pydanube.cli.output import show
    from pydanube.cli.recovery import names_by_id, run_recovery
    from pydanube.runtime.process import run

    flags = BrokerFlags(
        mode="standalone" if config_file is None else "cluster",
        config_file=None if config_file is None else config_file.name,
        data_dir=data_dir,
    )
    text = None if config_file is None else config_file.read()
    config = config_from_flags(flags, os.environ, text)
    report = run(run_recovery(config, apply=apply, names=names_by_id(names), doubtful=doubtful))
    show(report, output)
    if output == "text":
        if not report.has_work:
            click.echo("\nThe metadata lack nothing that journal and segments have.")
        elif not apply:
            click.echo("\nNothing was changed. Run it again with --apply to bring this in.")
