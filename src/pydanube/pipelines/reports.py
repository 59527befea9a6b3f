"""What runs, plans and status say about flows, and how a progress line reads. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from pydanube.pipelines.graph import Flow
from pydanube.spark.progress_reports import lag_of, total_of

State = Literal["STARTING", "RUNNING", "RESTARTING", "STOPPED", "DONE", "FAILED"]


class FlowStatus(Struct, kw_only=True):
    """How a flow is doing; kept beside its checkpoint after every batch."""

    pipeline: str
    flow: str
    target: str
    state: State = "STARTING"
    batch: int | None = None
    rows_in: int = 0
    rows_out: int = 0
    dead_letters: int = 0
    failed_expectations: dict[str, int] = {}
    """By `expectation/action`."""
    in_per_second: float = 0.0
    out_per_second: float = 0.0
    lag: int = 0
    lag_seconds: float = 0.0
    batch_ms: int = 0
    batches: int = 0
    batch_seconds: float = 0.0
    restarts: int = 0
    at_ms: int = 0
    error: str | None = None
    version: int | None = None
    """Of the table, where the sink is one that counts them."""
    counts: Literal["version", "snapshot"] = "version"
    """What the table calls that."""

    def take(self, progress: Mapping[str, Any]) -> None:
        """Take what Spark says about a batch."""
        self.state = "RUNNING"
        self.batch = progress["batchId"]
        self.batches += 1
        self.rows_in += int(total_of(progress, "numInputRows"))
        self.in_per_second = total_of(progress, "processedRowsPerSecond")
        self.batch_ms = progress.get("batchDuration") or 0
        self.batch_seconds += self.batch_ms / 1000
        self.lag = sum(lag_of(progress).values())
        self.lag_seconds = round(self.lag / self.in_per_second, 1) if self.in_per_second else 0.0


def status_of(flow: Flow) -> FlowStatus:
    """Return the status of a flow that has not begun."""
    return FlowStatus(pipeline=flow.pipeline, flow=flow.sink.name, target=flow.sink.target)


def line_of(status: FlowStatus) -> str:
    """Return the line that people watch."""
    name = f"{status.pipeline}/{status.flow}"
    batch = "-" if status.batch is None else str(status.batch)
    where = (
        status.target
        if status.version is None
        else f"{status.target}, {status.counts} {status.version}"
    )
    lag = f"lag {status.lag:,} rows {status.lag_seconds:.1f} s"
    line = (
        f"{name:<20} {status.state:<8} batch {batch}  in {_rate(status.in_per_second)}/s "
        f"out {_rate(status.out_per_second)}/s  {lag}  "
        f"batch {status.batch_ms} ms  dead {status.dead_letters}  → {where}"
    )
    return f"{line}  {status.error.splitlines()[0]}" if status.error else line


def _rate(number: float) -> str:
    return f"{number / 1000:.1f}k" if number >= 1000 else f"{number:.0f}"


class SourceWaiting(Struct, frozen=True, kw_only=True):
    """What a source has for the next batches."""

    source: str
    start: dict[str, int]
    """The next offset of each partition."""
    rows: int
    bytes: int
    """About: by the mean size of the topic's messages."""


class FlowPlan(Struct, frozen=True, kw_only=True):
    """What a flow would do, and why it may be trusted."""

    flow: str
    target: str
    sources: tuple[str, ...]
    stateful: bool
    guarantee: str
    reason: str
    checkpoint: str
    waiting: tuple[SourceWaiting, ...] = ()
    """Of each followed source: where it goes on, and what waits there."""
    refusals: tuple[str, ...] = ()


class PipelinePlan(Struct, frozen=True, kw_only=True):
    """What a pipeline would do."""

    pipeline: str
    flows: list[FlowPlan]

    @property
    def is_refused(self) -> bool:
        """Whether `run` would refuse a flow."""
        return any(flow.refusals for flow in self.flows)

    def text(self) -> str:
        """Return the plan for people."""
        return "\n".join(line for flow in self.flows for line in _lines(self.pipeline, flow))

    def show(self) -> None:
        """Print the plan."""
        print(self.text())  # noqa: T201  It is what one asks it for.


def _lines(pipeline: str, flow: FlowPlan) -> Iterator[str]:
    yield f"{pipeline}/{flow.flow} → {flow.target}"
    yield f"  reads       {'; '.join(flow.sources)}"
    yield f"  guarantee   {flow.guarantee}: {flow.reason}"
    yield f"  state       {'kept in the checkpoint' if flow.stateful else 'none'}"
    yield f"  checkpoint  {flow.checkpoint}"
    for each in flow.waiting:
        places = ", ".join(f"{topic} {offset}" for topic, offset in each.start.items())
        yield f"  starts      {each.source}: {places}"
        yield f"  waiting     {each.source}: {each.rows:,} rows, {each.bytes:,} bytes"
    for refusal in flow.refusals:
        yield f"  REFUSED     {refusal}"
