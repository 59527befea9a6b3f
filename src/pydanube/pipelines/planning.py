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
from pydanube.pipelines.sinks.catalog import kind_of
from pydanube.pipelines.sinks.kind import Promise
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
    promised = promise(flow)
    return FlowPlan(
        flow=flow.sink.name,
        target=flow.sink.target,
        sources=tuple(
            f"{name}: {', '.join(source.selection.values()) or source.path}"
            for name, source in flow.sources.items()
        ),
        stateful=bool(planning and planning.shape.stateful),
        guarantee=promised.words,
        reason=promised.reason,
        checkpoint=_checkpoint(files),
        waiting=waiting,
        refusals=tuple(refusals),
    )


def promise(flow: Flow) -> Promise:
    """Return what a flow guarantees, and why."""
    unversioned = [
        name
        for name, source in flow.sources.items()
        if source.mode == "static" and source.format != "delta"
    ]
    return kind_of(flow.sink).promise(flow.sink, unversioned)


def _checkpoint(files: FlowFiles) -> str:
    if files.query_id() is None:
        return f"{files.checkpoint}: none yet"
    last = files.last_batch()
    return f"{files.checkpoint}: {'no batch' if last is None else f'batch {last}'} done"
