"""`danube table`: topics as Delta and Iceberg tables."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING

import click

from pydanube.cli.options import output_option, service_addr_option, topic_options

if TYPE_CHECKING:
    from pydanube.tables.catalog_settings import CatalogSetting
    from pydanube.tables.opening import SparkUse
    from pydanube.tables.operations import TableOperations
    from pydanube.tables.service import Progress, Surroundings

_Show = Callable[[object], None]


_dry_run = click.option("--dry-run", is_flag=True, help="Only tell what would be done.")


@click.group("table")
def command() -> None:
    """Keep topics as Delta or Iceberg tables, each message once."""


def table_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command what all of them need, and call it with operations and a printer."""

    @service_addr_option
    @output_option
    @click.option(
        "--catalogs",
        envvar="DANUBE_CATALOGS",
        show_envvar=True,
        type=click.Path(dir_okay=False),
        help="The file that names catalogues.",
    )
    @wraps(function)
    def with_operations(
        *arguments: object,
        service_addr: str,
        output: str,
        catalogs: str | None,
        spark: "SparkUse" = "never",
        master: str | None = None,
        **rest: object,
    ) -> None:
        from pydanube.cli.output import show

        with open_surroundings(service_addr, catalogs, spark, master) as given:
            function(given, lambda result: show(result, output), *arguments, **rest)

    return with_operations


def topic_or_pattern(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command TOPIC, which may be a pattern over full names."""

    @click.argument("topic")
    @click.option("--namespace", help="Namespace of TOPIC, when TOPIC is not a full name.")
    @wraps(function)
    def with_topic(*arguments: object, topic: str, namespace: str | None, **rest: object) -> None:
        from pydanube.admin.operations.topics import full_topic_name

        # A star stands where letters would; which topics it means is asked later.
        full_topic_name(topic.replace("*", "x"), namespace)
        name = topic if topic.startswith("/") else f"/{namespace}/{topic}"
        function(*arguments, name, **rest)

    return with_topic


def spark_options(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command's user choose who does the work."""
    function = click.option(
        "--master",
        envvar="DANUBE_SPARK_MASTER",
        show_envvar=True,
        help="Where Spark runs; by default all cores of this machine.",
    )(function)
    return click.option(
        "--spark",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        help="Whether Spark's executors do the work; auto: from 1 GiB on.",
    )(function)


@contextmanager
def open_surroundings(
    url: str,
    catalogs: "str | Mapping[str, CatalogSetting] | None",
    spark: "SparkUse" = "auto",
    master: str | None = None,
) -> "Iterator[Surroundings]":
    """Give commands what they need."""
    from pydanube.tables.opening import crew_by, surroundings_of
    from pydanube.tables.spark_workers import DEFAULT_MASTER

    with (
        crew_by(spark, master or DEFAULT_MASTER) as crew,
        surroundings_of(url, catalogs, crew) as given,
    ):
        yield given


def _operations(given: "Surroundings") -> "TableOperations":
    from pydanube.tables.operations import TableOperations

    return TableOperations(given)


@command.command()
@click.option("--format", "kind", type=click.Choice(["iceberg", "delta"]), default="iceberg")
@click.option("--table", help="namespace.name, or a Delta table's path; by default the topic's.")
@click.option("--catalog", help="Where the table is, as the file of catalogues names it.")
@click.option("--freshness", default="30s", show_default=True, help="Between commits: 1s to 1h.")
@click.option("--partition-by", default="", help="Such as 'day(publish_time), region'.")
@click.option("--mode", type=click.Choice(["append", "upsert"]), default="append")
@click.option("--key", help="Of mode upsert: routing_key, or fields of payloads, by comma.")
@click.option("--start", type=click.Choice(["earliest", "latest"]), default="earliest")
@click.option(
    "--layout",
    type=click.Choice(["danube", "danube-iceberg"]),
    default="danube",
    show_default=True,
    help="danube-iceberg: the columns of the reference's exporter.",
)
@click.option(
    "--on-error",
    type=click.Choice(["dlq", "fail", "skip"]),
    default="dlq",
    show_default=True,
    help="What becomes of messages that do not fit.",
)
@click.option("--rebuild", is_flag=True, help="Make a table that is there anew, like this.")
@_dry_run
@table_options
@topic_or_pattern
def enable(
    given: "Surroundings",
    show: _Show,
    topic: str,
    kind: str,
    table: str | None,
    catalog: str | None,
    freshness: str,
    partition_by: str,
    mode: str,
    key: str | None,
    start: str,
    layout: str,
    on_error: str,
    rebuild: bool,
    dry_run: bool,
) -> None:
    """Keep TOPIC, a reliable one, as a table; `danube table run` does the work.

    A pattern such as '/default/*' stands for all topics it matches, also those to come; each gets a
    table of its own, named by --table with {topic} and {namespace} in it.
    """
    import msgspec

    from pydanube.spark.amounts import read_duration_ms
    from pydanube.tables.settings import (
        PATTERN_TABLE,
        TableSetting,
        default_table,
        is_pattern,
    )

    operations = _operations(given)
    wanted = key or ("routing_key" if mode == "upsert" else "")
    setting = msgspec.convert(
        {
            "format": kind,
            "table": table or (PATTERN_TABLE if is_pattern(topic) else default_table(topic)),
            "catalog": catalog,
            "freshness_ms": read_duration_ms(freshness),
            "partition_by": partition_by,
            "mode": mode,
            "key": [each.strip() for each in wanted.split(",") if each.strip()],
            "layout": layout,
            "on_error": on_error,
            "starts": operations.ends_of(topic) if start == "latest" else {},
        },
        TableSetting,
    )
    make = operations.rebuild if rebuild else operations.enable
    show(make(topic, setting, dry_run=dry_run))


@command.command("list")
@table_options
def list_tables(given: "Surroundings", show: _Show) -> None:
    """List the topics that are tables."""
    show(_operations(given).all())


@command.command()
@table_options
@topic_options
def status(given: "Surroundings", show: _Show, topic: str) -> None:
    """Tell how far the table of TOPIC is."""
    show(_operations(given).status(topic))


@command.command()
@table_options
@topic_or_pattern
def disable(given: "Surroundings", show: _Show, topic: str) -> None:
    """Keep TOPIC as a table no longer; the table stays, and `enable` goes on where it is."""
    show(_operations(given).disable(topic))


@command.command()
@_dry_run
@table_options
@topic_options
def rebuild(given: "Surroundings", show: _Show, topic: str, dry_run: bool) -> None:
    """Make the table of TOPIC anew from all the topic has; the old one stays until that is done."""
    show(_operations(given).rebuild(topic, dry_run=dry_run))


@command.command()
@spark_options
@table_options
@topic_options
def backfill(given: "Surroundings", show: _Show, topic: str) -> None:
    """Bring everything TOPIC has now into its table, then leave."""
    show(_operations(given).backfill(topic, _print_progress))


@command.command()
@click.option("--content", is_flag=True, help="Compare rows with their messages, too.")
@spark_options
@table_options
@topic_options
def verify(given: "Surroundings", show: _Show, topic: str, content: bool) -> None:
    """Check that the table of TOPIC has each message once; exit code 1 if it has not."""
    verdict = _operations(given).verify(topic, content=content)
    show(verdict)
    if not verdict.is_exact:
        raise click.exceptions.Exit(1)


@command.command()
@_dry_run
@click.option("--where", default="", help="Such as \"step = 'columns' and offset >= 500\".")
@spark_options
@table_options
@topic_options
def reprocess(given: "Surroundings", show: _Show, topic: str, where: str, dry_run: bool) -> None:
    """Try the dead letters of TOPIC again; those that fit by now go to the table."""
    show(_operations(given).reprocess(topic, where, dry_run=dry_run))


@command.command()
@_dry_run
@spark_options
@table_options
@topic_options
def compact(given: "Surroundings", show: _Show, topic: str, dry_run: bool) -> None:
    """Join small files of the table of TOPIC; exporters may go on meanwhile."""
    show(_operations(given).compact(topic, dry_run=dry_run))


@command.command()
@click.option(
    "--keep-days", type=click.IntRange(min=7), default=7, show_default=True, help="At least 7."
)
@click.option(
    "--keep-snapshots",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Of Iceberg tables: the newest ones, however old.",
)
@_dry_run
@table_options
@topic_options
def expire(
    given: "Surroundings",
    show: _Show,
    topic: str,
    keep_days: int,
    keep_snapshots: int,
    dry_run: bool,
) -> None:
    """Forget what the table of TOPIC was long ago; what it holds stays."""
    show(_operations(given).expire(topic, keep_days, keep_snapshots, dry_run=dry_run))


@command.command()
@_dry_run
@table_options
@topic_options
def vacuum(given: "Surroundings", show: _Show, topic: str, dry_run: bool) -> None:
    """Remove files that killed exporters and lost races of TOPIC have left behind."""
    show(_operations(given).vacuum(topic, dry_run=dry_run))


@command.command()
@spark_options
@table_options
def run(given: "Surroundings", show: _Show) -> None:
    """Serve all tables until SIGTERM or Ctrl-C; several may run beside each other."""
    serve_tables(given)


def serve_tables(given: "Surroundings") -> None:
    """Serve all tables until a signal comes."""
    from pydanube.runtime.process import run as run_loop
    from pydanube.tables.service import TableService

    run_loop(_serve(TableService(given, _print_progress).run))


async def _serve(work: Callable[[Callable[[float], bool]], None]) -> None:
    """Do blocking work in a thread until a signal comes; what it has begun is finished."""
    from pydanube.cli.running import stopped_by_signals
    from pydanube.runtime.threads import WorkerThreads

    asked = threading.Event()
    threads = WorkerThreads("danube-tables", 1)
    async with stopped_by_signals() as stop:
        click.echo("serving tables", err=True)
        working = threads.submit(lambda: work(asked.wait))
        working.add_done_callback(lambda _: stop.set())
        await stop.wait()
        asked.set()
        await working
    threads.stop()
    click.echo("stopped", err=True)


def _print_progress(progress: "Progress") -> None:
    done = progress.done
    if done is None:
        click.echo(f"{progress.topic or 'tables'}: {progress.failure}", err=True)
        return
    notes = f", {done.dead} dead letters" if done.dead else ""
    notes += f", {done.skipped} skipped" if done.skipped else ""
    notes += f", by Spark in {done.pieces} pieces" if done.pieces else ""
    click.echo(
        f"{progress.topic} -> {progress.table}: {done.messages} messages, {done.rows} rows{notes}, "
        f"lag {progress.lag_rows}",
        err=True,
    )
