"""`danube spark`: Spark with the right settings, and jobs over a topic's history."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING

import click

from pydanube.cli.options import output_option, service_addr_option, topic_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pydanube.spark.compacting import Compacted
    from pydanube.spark.launching import Launch
    from pydanube.spark.replaying import Replayed

_MASTER = "local[*,4]"

master_option = click.option(
    "--master",
    default=_MASTER,
    show_default=True,
    help="Spark's master; local ones: loopback. sc://host:port: a Spark Connect server.",
)
conf_option = click.option(
    "--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be repeated."
)


@click.group("spark")
def command() -> None:
    """Start Spark with the right settings; replay, verify and compact history."""


@command.command(context_settings={"ignore_unknown_options": True})
@master_option
@conf_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def shell(master: str, conf: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    """Open PySpark's shell; ARGUMENTS are handed through to it."""
    from pydanube.spark.launching import launch

    _become(launch("pyspark", os.environ, master=master, conf=conf, arguments=arguments))


@command.command(context_settings={"ignore_unknown_options": True})
@master_option
@conf_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def submit(master: str, conf: tuple[str, ...], file: str, arguments: tuple[str, ...]) -> None:
    """Run FILE, a Python program, by spark-submit; ARGUMENTS are its own."""
    from pydanube.spark.launching import launch

    words = (file, *arguments)
    _become(launch("spark-submit", os.environ, master=master, conf=conf, arguments=words))


@command.command(context_settings={"ignore_unknown_options": True})
@master_option
@click.option(
    "--port", type=click.IntRange(1, 65535), default=15002, show_default=True, help="To listen on."
)
@conf_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def server(master: str, port: int, conf: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    """Run a Spark Connect server, for sc://127.0.0.1:PORT; ARGUMENTS go to spark-submit.

    It listens on loopback: whoever reaches it may run programs. For others put a proxy that
    authenticates before it.
    """
    from pydanube.spark.launching import launch_server

    _become(launch_server(os.environ, master=master, port=port, conf=conf, arguments=arguments))


def _become(wanted: "Launch") -> None:
    os.execve(wanted.command[0], wanted.command, wanted.environment)


def job_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a job over a topic what all of them need; it is called with options of the source."""

    @service_addr_option
    @output_option
    @master_option
    @conf_option
    @click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of format danube, such as segmentAccess=direct; may be repeated.",
    )
    @topic_options
    @wraps(function)
    def with_options(
        topic: str, service_addr: str, options: tuple[str, ...], **rest: object
    ) -> None:
        given: dict[str, object] = dict(_pair(each) for each in options)
        function(topic, {"url": service_addr, **given}, **rest)

    return with_options


@command.command()
@job_options
@click.option("--into", required=True, help="The Delta table: a directory or URL.")
@click.option("--start", help="First offset, time or -10m; by default the earliest.")
@click.option("--end", help="Where to end, likewise; by default what there is now.")
@click.option("--columns", help="The columns to bring, comma-separated; by default all.")
@click.option("--job", help="The replay's name within the table; by default the topic's.")
@click.option("--commit-rows", type=click.IntRange(1), help="Rows of one commit, about.")
@click.option("--compression", default="zstd", show_default=True, help="Of the table's files.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
def replay(
    topic: str,
    options: dict[str, object],
    output: str,
    master: str,
    conf: tuple[str, ...],
    into: str,
    start: str | None,
    end: str | None,
    columns: str | None,
    job: str | None,
    commit_rows: int | None,
    compression: str,
    dry_run: bool,
) -> None:
    """Bring the history of TOPIC into a Delta table, each message once."""
    from pydanube.cli.output import show
    from pydanube.spark.replay_plan import COMMIT_ROWS
    from pydanube.spark.replaying import replay as replay_topic

    with _session(f"replay {topic}", master, conf) as spark:
        done = replay_topic(
            spark,
            topic,
            into,
            _boundary(start),
            _boundary(end),
            columns.split(",") if columns else None,
            job=job,
            commit_rows=commit_rows or COMMIT_ROWS,
            dry_run=dry_run,
            compression=compression,
            storage=None,
            progress=_tell,
            **options,
        )
    show(done, output)


@command.command()
@job_options
def verify(
    topic: str, options: dict[str, object], output: str, master: str, conf: tuple[str, ...]
) -> None:
    """Read all of TOPIC: gaps, repeats, damage. Exit code 1 if there is a difference."""
    from pydanube.cli.output import show
    from pydanube.spark.verifying import verify as verify_topic

    with _session(f"verify {topic}", master, conf) as spark:
        found = verify_topic(spark, topic, **options)
    show(found, output)
    if not found.is_whole:
        raise click.exceptions.Exit(1)


@command.command()
@job_options
@click.option(
    "--target-mib",
    type=click.IntRange(1, 1024),
    default=256,
    show_default=True,
    help="What a joined segment holds at most, before compression.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
def compact(
    topic: str,
    options: dict[str, object],
    output: str,
    master: str,
    conf: tuple[str, ...],
    target_mib: int,
    dry_run: bool,
) -> None:
    """Join small segments of TOPIC; its offsets and messages stay what they are.

    Exit code 1 if some stayed apart: they changed meanwhile, or are damaged.
    """
    from pydanube.cli.output import show
    from pydanube.spark.compacting import RUN_MIN
    from pydanube.spark.compacting import compact as compact_topic

    with _session(f"compact {topic}", master, conf) as spark:
        done = compact_topic(
            spark,
            topic,
            target_bytes=target_mib * 1024 * 1024,
            run_min=RUN_MIN,
            dry_run=dry_run,
            progress=_tell_joined,
            **options,
        )
    show(done, output)
    if done.refused:
        raise click.exceptions.Exit(1)


@contextmanager
def _session(name: str, master: str, conf: tuple[str, ...]) -> "Iterator[SparkSession]":
    from pydanube.spark.ending import stop_session
    from pydanube.spark.sessions import quiet_settings, session

    given = {**quiet_settings(master), **dict(_pair(each) for each in conf)}
    spark = session(name, master, **given)
    try:
        yield spark
    finally:
        stop_session(spark)


def _tell(state: "Replayed") -> None:
    done = state.rows_before + state.rows_added
    click.echo(
        f"{done} of {state.rows} messages, commit {state.steps_done} of {state.steps}", err=True
    )


def _tell_joined(state: "Compacted") -> None:
    done = state.into + len(state.refused)
    click.echo(f"run {done} of {state.runs}, {state.joined} segments joined", err=True)


def _boundary(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value
