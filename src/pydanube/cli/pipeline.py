"""`danube pipeline`: plan, run, watch and stop data pipelines on Spark."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING

import click

from pydanube.cli.options import output_option

if TYPE_CHECKING:
    from pydanube.pipelines.definitions import PipelineDefinition, Scalar
    from pydanube.pipelines.reports import FlowStatus, PipelinePlan

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
        run(_read(file, parameters), **rest)

    return with_definition


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
    from pydanube.pipelines.runner import start_spark

    spark = start_spark(definition.pipeline, definition.spark)
    try:
        found = plan_pipeline(definition, spark)
    finally:
        spark.stop()
    if output == "json":
        from pydanube.cli.output import show

        show(found, output)
    else:
        _show_plan(found)
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
    from pydanube.pipelines.runner import PipelineRun, check_outcome, start_spark
    from pydanube.runtime.process import StopFlag

    spark = start_spark(definition.pipeline, definition.spark)
    try:
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
    finally:
        spark.stop()
    _Lines(output).end(statuses)
    check_outcome(statuses)


@command.command()
@click.argument("name", required=False)
@_place_options
def status(name: str | None, checkpoints: str, output: str) -> None:
    """Tell how the flows are doing that have run over a directory of checkpoints."""
    from pydanube.cli.output import show
    from pydanube.pipelines.control import statuses
    from pydanube.pipelines.reports import line_of

    found = statuses(checkpoints, name)
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
@click.option("--from", "start", default="earliest", show_default=True, help="Offset, or a time.")
@click.option("--to", "end", default="latest", show_default=True, help="Where to end: exclusive.")
@click.option("--into", required=True, help="A new topic, or a new path for a Delta table.")
def replay(
    definition: "PipelineDefinition", output: str, flow: str, start: str, end: str, into: str
) -> None:
    """Send a part of history through the steps of a flow of FILE, into a new topic or table."""
    from pydanube.cli.output import show
    from pydanube.pipelines.replaying import replay as send
    from pydanube.pipelines.runner import start_spark

    spark = start_spark(definition.pipeline, definition.spark)
    try:
        done = send(definition, spark, flow, start=start, end=end, into=into)
    finally:
        spark.stop()
    show(done, output)


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


def _read(file: str, parameters: Sequence[str]) -> "PipelineDefinition":
    from pydanube.pipelines.documents import read_definition
    from pydanube.pipelines.graph import check_graph
    from pydanube.runtime.blocking import environment_variables, read_file

    text = read_file(file).decode(errors="replace")
    given = dict(_parameter(each) for each in parameters)
    definition, places = read_definition(text, file, environment_variables(), given)
    check_graph(definition, places)
    return definition


def _parameter(text: str) -> "tuple[str, Scalar]":
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--param {text}: write it as NAME=VALUE")
    return name, value


def _show_plan(plan: "PipelinePlan") -> None:
    for flow in plan.flows:
        click.echo(f"{plan.pipeline}/{flow.flow} → {flow.target}")
        click.echo(f"  reads       {'; '.join(flow.sources)}")
        click.echo(f"  guarantee   {flow.guarantee}: {flow.reason}")
        click.echo(f"  state       {'kept in the checkpoint' if flow.stateful else 'none'}")
        click.echo(f"  checkpoint  {flow.checkpoint}")
        for refusal in flow.refusals:
            click.echo(f"  REFUSED     {refusal}")
