"""`danube-iceberg`: the reference's exporter, by its own configuration file."""

import click


@click.command("danube-iceberg")
@click.option(
    "--config", required=True, type=click.Path(dir_okay=False), help="The exporter's YAML file."
)
def command(config: str) -> None:
    """Keep topics as Iceberg tables, until SIGTERM or Ctrl-C; each message once.

    The tables have the reference's columns. The topics stay tables: `danube table` lists them,
    and looks after them.
    """
    from pydanube.cli.table import open_surroundings, serve_tables
    from pydanube.runtime.blocking import read_file
    from pydanube.tables.operations import TableOperations
    from pydanube.tables.reference_config import read_reference_config

    try:
        found = read_reference_config(read_file(config))
    except OSError as error:
        raise click.BadParameter(str(error), param_hint="--config") from error
    settings = found.settings()
    with open_surroundings(found.broker.address, found.catalogs()) as given:
        operations = TableOperations(given)
        for topic, setting in settings.items():
            operations.enable(topic, setting)
        serve_tables(given)
