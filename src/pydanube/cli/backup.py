"""`danube backup`: copy the metadata of a running broker, check a copy, put one in place."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from pydanube.cli.options import AdminSession, admin_options, output_option

if TYPE_CHECKING:
    from pydanube.admin.operations import Operations
    from pydanube.cli.backups import BackupReport

file_argument = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.group("backup")
def command() -> None:
    """Copy, check and restore the metadata of brokers.

    Topics, subscriptions, schemas and policies are in a backup. Messages are not: they are in the
    journals and in the segment store. What was stored after the copy comes back from there, by
    `danube recover`.
    """


@command.command()
@file_argument
@admin_options
def create(session: AdminSession, file: Path) -> None:
    """Copy the metadata of a running broker, or of its whole cluster, to FILE.

    FILE must not exist yet. It is whole and synced once the command ends.
    """

    async def write(operations: "Operations") -> "BackupReport":
        from pydanube.cli.backups import store_backup

        return await store_backup(file, *await operations.cluster.create_backup())

    session.show(write)


@command.command()
@file_argument
@output_option
def verify(file: Path, output: str) -> None:
    """Check every byte of FILE, and tell what is in it.

    Exit code 9: it is damaged, or no backup.
    """
    from pydanube.cli.backups import check_backup
    from pydanube.cli.output import show
    from pydanube.runtime.process import run

    show(run(check_backup(file)), output)


@command.command()
@file_argument
@click.option("--data-dir", metavar="DIR", help="Of a standalone broker.")
@click.option("--config-file", type=click.File(encoding="utf-8"), help="Of a broker of a cluster.")
@click.option("--replace", is_flag=True, help="Keep the metadata that are there beside, not here.")
@output_option
def restore(
    file: Path, data_dir: str | None, config_file: TextIO | None, replace: bool, output: str
) -> None:
    """Put FILE in place as the metadata of a broker that does not run.

    Then `danube recover` compares journal and segments with it; the broker serves nothing before.
    """
    from pydanube.broker.flags import BrokerFlags, config_from_flags
    from pydanube.cli.backups import put_in_place
    from pydanube.cli.output import show
    from pydanube.runtime.process import run

    flags = BrokerFlags(
        mode="standalone" if config_file is None else "cluster",
        config_file=None if config_file is None else config_file.name,
        data_dir=data_dir,
    )
    text = None if config_file is None else config_file.read()
    config = config_from_flags(flags, os.environ, text)
    show(run(put_in_place(file, config, replace=replace)), output)
