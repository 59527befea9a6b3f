"""`plan`: what a pipeline would do, flow by flow, with the reason for each guarantee."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydanube.errors import DanubeError
from pydanube.pipelines.checks import find_refusal
from pydanube.pipelines.definitions import PipelineDefinition
from pydanube.pipelines.flow_files import FlowFiles
from pydanube.pipelines.flow_run import FlowPlanning, plan_flow
from pydanube.pipelines.frames import FlowFrames, PythonStep
from pydanube.pipelines.graph import Flow, flows_of
from pydanube.pipelines.reports import FlowPlan, PipelinePlan, SourceWaiting
from pydanube.pipelines.waiting import begun_before, reached_by, waiting_for
from pydanube.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def plan_pipeline(
    definition: PipelineDefinition,
    spark: "SparkSession",
    functions: Mapping[str, PythonStep] | None = None,
    clock: Clock | None = None,
) -> PipelinePlan:
    """Look at everything that a run would need, and change nothing."""
    now_ms = (clock or SystemClock()).now_ms()
    return PipelinePlan(
        pipeline=definition.pipeline,
        flows=[_plan(definition, flow, spark, functions, now_ms) for flow in flows_of(definition)],
    )


def _plan(
    definition: PipelineDefinition,
    flow: Flow,
    spark: "SparkSession",
    functions: Mapping[str, PythonStep] | None,
    now_ms: int,
) -> FlowPlan:
    frames = FlowFrames(flow, definition.danube, definition.parameters, functions)
    files = FlowFiles(definition.checkpoints, flow.pipeline, flow.sink.name)
    record = files.record()
    refusals: list[str] = []
    planning: FlowPlanning | None = None
    waiting: tuple[SourceWaiting, ...] = ()
    try:
        starts = record.starts if record else {}
        waiting = waiting_for(frames, reached_by(files, frames), starts, now_ms)
        planning = plan_flow(spark, frames, starts)
        found = (
            find_refusal(flow, files, planning.identity),
            begun_before(frames, files, now_ms),
        )
        refusals += [each for each in found if each is not None]
    except DanubeError as error:
        refusals.append(str(error))
    guarantee, reason = promise(flow)
    return FlowPlan(
        flow=flow.sink.name,
        target=flow.sink.target,
        sources=tuple(
            f"{name}: {', '.join(source.selection.values()) or source.path}"
            for name, source in flow.sources.items()
        ),
        stateful=bool(planning and planning.shape.stateful),
        guarantee=guarantee,
        reason=reason,
        checkpoint=_checkpoint(files),
        waiting=waiting,
        refusals=tuple(refusals),
    )


def promise(flow: Flow) -> tuple[str, str]:
    """Return what a flow guarantees, and why."""
    sink = flow.sink
    unversioned = [
        name
        for name, source in flow.sources.items()
        if source.mode == "static" and source.format != "delta"
    ]
    match sink.format:
        case "danube" if sink.guarantee == "at_least_once":
            return "at least once", "the sink asks for no more"
        case "danube" if unversioned:
            return (
                "at least once",
                f"{', '.join(unversioned)} has no versions: a repeated batch may look up others",
            )
        case "danube":
            return "exactly once", "rows are numbered by query, batch and task; a repeat is known"
        case "delta" | "iceberg":
            return "exactly once", "rows and the batch's number are one commit of the table"
        case "sql":
            return "exactly once", "rows and the batch's number are one transaction"
        case "parquet":
            return "exactly once", "a batch has a directory of its own, which a repeat writes anew"
        case "console" | "noop":
            return "at least once", "nothing is kept that would know a repeat"


def _checkpoint(files: FlowFiles) -> str:
    if files.query_id() is None:
        return f"{files.checkpoint}: none yet"
    last = files.last_batch()
    return f"{files.checkpoint}: {'no batch' if last is None else f'batch {last}'} done"
