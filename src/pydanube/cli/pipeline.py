"""`danube pipeline`: plan, run, watch and stop data pipelines on Spark."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pydanube.cli.options import DEFAULT_SERVICE_ADDR, output_option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pydanube.pipelines.definitions import PipelineDefinition, Scalar
    from pydanube.pipelines.places import Places
    from pydanube.pipelines.reports import FlowStatus

_CHECKPOINTS = "DANUBE_PIPELINE_CHECKPOINTS"


@click.group("pipeline")
def command() -> None:
    """Plan, run, watch and stop data pipelines on Spark."""


def _file_options(run: Callable[..., None]) -> Callable[..., None]:
    @click.argument("file", type=click.Path(exists=True, dir_okay=False))
    @click.option(
        "--param",
        "parameters",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set a parameter of the file; may be given several times.",
    )
    @output_option
    @wraps(run)
    def with_definition(file: str, parameters: tuple[str, ...], **rest: object) -> None:
        _find_modules_in(str(Path(file).resolve().parent))
        run(_read(file, parameters), **rest)

    return with_definition


def _find_modules_in(directory: str) -> None:
    """Let steps name modules beside the file; Spark's workers on this machine find them, too."""
    sys.path.insert(0, directory)
    given = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{directory}{os.pathsep}{given}" if given else directory


def _place_options(run: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--checkpoints",
        envvar=_CHECKPOINTS,
        required=True,
        help=f"The directory that files name as checkpoints.  [env: {_CHECKPOINTS}]",
    )(output_option(run))


@command.command()
@_file_options
def plan(definition: "PipelineDefinition", output: str) -> None:
    """Check everything that a run of FILE needs, without running it."""
    from pydanube.pipelines.planning import plan_pipeline

    with _started_spark(definition) as spark:
        found = plan_pipeline(definition, spark)
    if output == "json":
        from pydanube.cli.output import show

        show(found, output)
    else:
        click.echo(found.text())
    if found.is_refused:
        raise click.exceptions.Exit(5)


@command.command()
@_file_options
@click.option("--flow", help="Run this flow alone.")
@click.option("--available-now", is_flag=True, help="End when what is there now is done.")
@click.option("--new-checkpoint", is_flag=True, help="Set the old checkpoint aside.")
@click.option("--from-sink", is_flag=True, help="Go on where the sink's table ends.")
def run(
    definition: "PipelineDefinition",
    output: str,
    flow: str | None,
    available_now: bool,
    new_checkpoint: bool,
    from_sink: bool,
) -> None:
    """Run FILE in the foreground; SIGTERM and Ctrl-C stop it after the batch."""
    from pydanube.pipelines.checks import Beginning
    from pydanube.pipelines.metrics import MetricsPage
    from pydanube.pipelines.runner import PipelineRun, check_outcome
    from pydanube.runtime.process import StopFlag

    with _started_spark(definition) as spark:
        running = PipelineRun(
            definition,
            spark,
            flow=flow,
            available_now=available_now,
            beginning=Beginning(new_checkpoint=new_checkpoint, from_sink=from_sink),
        )
        port = definition.metrics_port
        page = nullcontext() if port is None else MetricsPage(port, running.statuses)
        with StopFlag() as stop, page:
            statuses = running.run(stop, _Lines(output).show)
    _Lines(output).end(statuses)
    check_outcome(statuses)


@command.command()
@click.argument("name", required=False)
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C.")
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds."
)
@click.option(
    "--checkpoints",
    envvar=_CHECKPOINTS,
    help=f"The directory that files name as checkpoints.  [env: {_CHECKPOINTS}]",
)
@click.option(
    "-s",
    "--service-addr",
    envvar="DANUBE_SERVICE_ADDR",
    show_envvar=True,
    help="Any broker of the cluster: what runs have told the topic /system/pipelines. "
    f"Without --checkpoints: {DEFAULT_SERVICE_ADDR}.",
)
@output_option
def status(
    name: str | None,
    watch: bool,
    every: float,
    checkpoints: str | None,
    service_addr: str | None,
    output: str,
) -> None:
    """Tell how the flows are doing that run, or have run, over checkpoints or with a broker."""
    from pydanube.cli.output import show
    from pydanube.pipelines.control import known_statuses
    from pydanube.pipelines.reports import line_of

    if checkpoints is None and service_addr is None:
        service_addr = DEFAULT_SERVICE_ADDR

    def look() -> "Sequence[FlowStatus]":
        return known_statuses(checkpoints, service_addr, name)

    if watch:
        from pydanube.cli.pipeline_watch import watch as show_again
        from pydanube.runtime.blocking import pause
        from pydanube.runtime.process import StopFlag

        with StopFlag() as stop:
            show_again(look, output, every, lambda: stop.is_set, pause)
        return
    found = look()
    if output == "json":
        show(found, output)
    for each in found if output != "json" else ():
        click.echo(line_of(each))


@command.command()
@click.argument("name")
@click.option("--flow", help="Stop this flow alone.")
@click.option("--now", is_flag=True, help="Do not wait for the batch; it is repeated later.")
@click.option(
    "--wait-seconds", type=click.FloatRange(min=0), default=60.0, show_default=True, help="At most."
)
@_place_options
def stop(
    name: str, flow: str | None, now: bool, wait_seconds: float, checkpoints: str, output: str
) -> None:
    """Stop pipeline NAME after the batches that are under way."""
    from pydanube.cli.output import show
    from pydanube.pipelines.control import stop_flows

    show(stop_flows(checkpoints, name, flow, now=now, seconds_max=wait_seconds), output)


@command.command()
@_file_options
@click.option("--flow", required=True, help="The flow whose steps are used.")
@click.option("--from", "start", help="earliest, offsets as JSON, or a time.  [default: earliest]")
@click.option("--to", "end", help="Where to end: exclusive.  [default: latest]")
@click.option(
    "--into", required=True, help="A new topic, path of a Delta or name of an Iceberg table."
)
@click.option("--swap", is_flag=True, help="Let the outcome take the place of the live table.")
@click.option("--dead-letters", is_flag=True, help="Give rejected rows another try.")
@click.option("--dry-run", is_flag=True, help="Only tell how many rows it would be.")
def replay(
    definition: "PipelineDefinition",
    output: str,
    flow: str,
    start: str | None,
    end: str | None,
    into: str,
    swap: bool,
    dead_letters: bool,
    dry_run: bool,
) -> None:
    """Send a part of history through the steps of a flow of FILE, into a new topic or table."""
    from pydanube.cli.output import show
    from pydanube.pipelines.replaying import replay as send

    with _started_spark(definition) as spark:
        done = send(
            definition,
            spark,
            flow,
            start=start,
            end=end,
            into=into,
            swap=swap,
            dead_letters=dead_letters,
            dry_run=dry_run,
        )
    show(done, output)


@command.command("export-sdp")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("directory", type=click.Path(file_okay=False, resolve_path=True))
@click.option("--param", "parameters", multiple=True, metavar="NAME=VALUE", help="As of run.")
@output_option
def export_sdp(file: str, directory: str, parameters: tuple[str, ...], output: str) -> None:
    """Write FILE as a project of Spark Declarative Pipelines into a new DIRECTORY."""
    from pydanube.cli.output import show
    from pydanube.pipelines.sdp import export
    from pydanube.runtime.blocking import names_in, replace_file

    definition, places = _read_with_places(file, parameters)
    project = export(definition, directory, places)
    if names_in(directory):
        raise click.UsageError(f"{directory} is not empty; name a new directory")
    for path, text in project.files.items():
        replace_file(f"{directory}/{path}", text.encode())
    if output == "json":
        show(project, output)
    else:
        click.echo(f"{_spark_variables(definition.spark.master)} {project.command}")


def _spark_variables(master: str) -> str:
    """Return what a command line of Spark's own programs begins with."""
    from pydanube.errors import NotSupported
    from pydanube.spark.sessions import environment_for

    try:
        # Spark's programs are started by Java, those of a Spark Connect server too.
        found = environment_for(master, os.environ)
    except NotSupported as error:
        click.echo(str(error), err=True)  # It may run on another machine.
        found = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    path = {"PATH": f"{Path(sys.executable).parent}:$PATH"}
    return " ".join(f"{name}={value}" for name, value in {**path, **found}.items())


class _Lines:
    """Prints a line per flow whenever it has done a batch, on stderr."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._shown: dict[str, tuple[object, ...]] = {}

    def show(self, statuses: "Sequence[FlowStatus]") -> None:
        from pydanube.pipelines.reports import line_of

        for each in statuses:
            seen = (each.state, each.batch)
            if self._shown.get(each.flow) != seen:
                self._shown[each.flow] = seen
                click.echo(line_of(each), err=True)

    def end(self, statuses: "Sequence[FlowStatus]") -> None:
        from pydanube.cli.output import show
        from pydanube.pipelines.reports import line_of

        if self._output == "json":
            show(list(statuses), self._output)
        else:
            for each in statuses:
                click.echo(line_of(each))


@contextmanager
def _started_spark(definition: "PipelineDefinition") -> "Iterator[SparkSession]":
    from pydanube.pipelines.runner import look_for_brokers, start_spark
    from pydanube.spark.ending import stop_session

    look_for_brokers(definition)
    spark = start_spark(definition.pipeline, definition.spark)
    try:
        yield spark
    finally:
        stop_session(spark)


def _read(file: str, parameters: Sequence[str]) -> "PipelineDefinition":
    return _read_with_places(file, parameters)[0]


def _read_with_places(file: str, parameters: Sequence[str]) -> "tuple[PipelineDefinition, Places]":
    from pydanube.pipelines.documents import read_definition
    from pydanube.pipelines.graph import check_graph
    from pydanube.runtime.blocking import environment_variables, read_file

    text = read_file(file).decode(errors="replace")
    given = dict(_parameter(each) for each in parameters)
    definition, places = read_definition(text, file, environment_variables(), given)
    check_graph(definition, places)
    return definition, places


def _parameter(text: str) -> "tuple[str, Scalar]":
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--param {text}: write it as NAME=VALUE")
    return name, value
