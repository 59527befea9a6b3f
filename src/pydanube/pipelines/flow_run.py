"""One flow while it runs: a streaming query that is started, watched, restarted and stopped.

Nothing here waits: whoever runs flows calls `turn` again and again. Batches run in threads of
Spark.
"""

import json
import logging
from collections.abc import Callable, Mapping
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, structs

from pydanube.errors import DanubeError, InvalidRequest
from pydanube.pipelines.batches import BatchDone, BatchWork
from pydanube.pipelines.checks import Beginning, begin
from pydanube.pipelines.definitions import PipelineDefinition, Step, Trigger
from pydanube.pipelines.errors import FlowRefused, StopAsked
from pydanube.pipelines.flow_files import FlowFiles, HowToStop
from pydanube.pipelines.frames import (
    FlowFrames,
    PythonStep,
    Shape,
    cut_of,
    look_up,
    steps_after,
    version_of,
)
from pydanube.pipelines.graph import REJECTED, Flow
from pydanube.pipelines.identity import FlowIdentity, identity_of
from pydanube.pipelines.remote_batches import RemoteBatches, RemoteFailure, notes_of
from pydanube.pipelines.reports import FlowStatus, status_of
from pydanube.pipelines.sinks.catalog import kind_of
from pydanube.pipelines.spark_errors import is_hopeless, words_of
from pydanube.pipelines.waiting import begun_before
from pydanube.runtime.blocking import pause
from pydanube.runtime.clock import Clock
from pydanube.spark.amounts import read_duration_ms
from pydanube.spark.brokers import brokers_of
from pydanube.spark.connect import is_connected
from pydanube.spark.options import read_options
from pydanube.spark.progress_reports import offsets_of, total_of
from pydanube.spark.source.cursors import move_for_holder
from pydanube.spark.source.offsets import read_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("pydanube.pipelines")

_END_SECONDS_MAX = 30.0
_END_LOOK_SECONDS = 0.02
_ENDS_NAMED_MAX = 5


class FlowPlanning(Struct, frozen=True, kw_only=True):
    """A flow as Spark sees it, before anything runs."""

    shape: Shape
    cut: str
    steps: tuple[Step, ...]
    identity: FlowIdentity
    early: tuple[Step, ...]
    """Steps ahead of state that send rows to the dead letters: a query of their own does it."""


def plan_flow(
    spark: "SparkSession", frames: FlowFrames, starts: Mapping[str, Mapping[str, int]]
) -> FlowPlanning:
    """Let Spark analyse a flow; InvalidRequest names the step that is wrong."""
    flow = frames.flow
    statics = {
        name: look_up(spark, source, version_of(source))
        for name, source in flow.sources.items()
        if source.mode == "static"
    }
    shape = frames.follow(spark, starts, statics)
    cut = cut_of(flow, shape)
    steps = steps_after(flow, cut)
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or "200")
    ahead = [step for step in flow.steps if step not in steps]
    early = tuple(
        step for step in ahead if any(each.otherwise == "dead_letter" for each in step.expect or ())
    )
    if early and shape.stateful & _ancestors(early[-1].name, shape):
        raise InvalidRequest(
            f"{flow.name}: step {early[-1].name} sends rows to the dead letters between two steps "
            "that keep state; part the flow through a topic there"
        )
    kind = kind_of(flow.sink)
    if kind.needs_same_rows(flow.sink) and shape.chance is not None:
        raise InvalidRequest(
            f"{flow.name}: {shape.chance} gives another answer when a batch is repeated, and "
            f"{flow.sink.target} stores each row once; take the value from the data, or give the "
            "sink guarantee: at_least_once"
        )
    fields = shape.frames[flow.sink.from_].schema.fields
    columns = [(each.name, each.dataType.simpleString()) for each in fields]
    try:
        kind.check_columns(flow.sink, columns, frames.danube_options)
    except InvalidRequest as error:
        raise InvalidRequest(f"{flow.name}, sink {flow.sink.name}: {error}") from None
    return FlowPlanning(
        shape=shape,
        cut=cut,
        steps=steps,
        identity=identity_of(flow, partitions if shape.stateful else None),
        early=early,
    )


class FlowRun:
    """Runs one flow. It holds the flow's lock from `start` until it has ended."""

    def __init__(
        self,
        definition: PipelineDefinition,
        flow: Flow,
        spark: "SparkSession",
        clock: Clock,
        *,
        functions: Mapping[str, PythonStep] | None = None,
        beginning: Beginning | None = None,
        trigger: Trigger | None = None,
        around_batch: "Callable[[BatchWork, DataFrame, int], BatchDone] | None" = None,
    ) -> None:
        self.flow = flow
        self.status: FlowStatus = status_of(flow)
        self._definition = definition
        self._spark = spark
        self._clock = clock
        self._frames = FlowFrames(flow, definition.danube, definition.parameters, functions)
        self._files = FlowFiles(definition.checkpoints, flow.pipeline, flow.sink.name)
        self._beginning = beginning or Beginning()
        self._trigger = trigger or definition.trigger_of(flow.sink)
        self._around = around_batch or BatchWork.__call__
        self._query: StreamingQuery | None = None
        self.side: FlowRun | None = None
        """Carries rejected rows from ahead of a step that keeps state."""
        self._seen = -1
        self._raised: Exception | None = None
        self._start_at_ms: int | None = None
        self._pause_ms = read_duration_ms(definition.on_failure.backoff)
        self._failures = 0
        self._stop: HowToStop | None = None
        self._next_batch_waits = Event()
        self._out_before = 0
        self._noted = 0

    @property
    def has_ended(self) -> bool:
        """Whether nothing will happen any more."""
        side = self.side is None or self.side.has_ended
        return side and self.status.state in ("STOPPED", "DONE", "FAILED")

    def start(self) -> None:
        """Begin. What is refused is raised; then nothing was changed."""
        self._files.hold()
        try:
            self._files.forget_stop()
            self._start()
        except BaseException:
            self._files.let_go()
            raise

    def stop(self, *, now: bool = False) -> None:
        """Stop after the batch that is under way, or at once."""
        if self.side is not None:
            self.side.stop(now=now)
        if self.has_ended:
            return
        self._stop = "now" if now else "after the batch"
        self._files.ask_to_stop(self._stop)  # The next batch looks for it, wherever it runs.

    def turn(self) -> None:
        """Look at the query, and do what is due."""
        if self.side is not None:
            self.side.turn()
        if self.status.state in ("STOPPED", "DONE", "FAILED"):
            return
        asked = self._files.asked_to_stop()
        if asked is not None and asked != self._stop:
            self.stop(now=asked == "now")
        self._take_progress()
        query = self._query
        if query is None:
            self._turn_without_query()
        elif not query.isActive:
            self._query_ended(query)
        elif self._stop == "now" or (self._stop is not None and self._is_between_batches(query)):
            query.stop()
            self._take_progress()
            self._end("STOPPED")

    def _is_between_batches(self, query: "StreamingQuery") -> bool:
        return self._next_batch_waits.is_set() or not query.status["isTriggerActive"]

    def _turn_without_query(self) -> None:
        if self._stop is not None:
            self._end("STOPPED")
        elif self._start_at_ms is not None and self._clock.monotonic_ms() >= self._start_at_ms:
            try:
                self._start()
            except Exception as error:  # noqa: BLE001  Spark raises all kinds; it is counted.
                self._failed(error)

    def _start(self) -> None:
        record = self._files.record()
        planning = plan_flow(self._spark, self._frames, record.starts if record else {})
        if not self._beginning.new_checkpoint:
            refusal = begun_before(self._frames, self._files, self._clock.now_ms())
            if refusal is not None:
                raise FlowRefused(f"{self.flow.name}: {refusal}")
        record = begin(
            self.flow, self._files, planning.identity, self._beginning, self._clock.now_ms()
        )
        self._beginning = Beginning()  # A restart goes on from the checkpoint that was begun.
        if record.starts:
            planning = plan_flow(self._spark, self._frames, record.starts)
        work = BatchWork(
            self._definition,
            self._frames,
            self._files,
            cut=planning.cut,
            steps=planning.steps,
            ordered=not planning.shape.shuffled,
            rejected_only=self.flow.sink.name.endswith(REJECTED),
        )
        if planning.early and self.side is None:
            self.side = self._rejecting(planning.early)
            self.side.start()
        self._query = self._open(planning.shape.frames[planning.cut], work)
        if self._files.query_id() is None:
            self._query.stop()
            self._query = None
            raise FlowRefused(
                f"{self.flow.name}: Spark keeps checkpoints, and {self._files.checkpoint} is not "
                "there for this process; name a directory that this machine and Spark's share"
            )
        self.status.state = "RUNNING"
        begin(self.flow, self._files, planning.identity, Beginning(), 0)  # Now with the query's id.
        self._files.report(self.status)

    def _carrier(self, work: BatchWork) -> "Callable[[DataFrame, int], None]":
        """Return what carries out batches: here, or where Spark Connect takes it."""

        def carry_out(batch: "DataFrame", number: int) -> None:
            try:
                if self._files.asked_to_stop() is not None:
                    self._wait_for_the_end()
                self._take(self._around(work, batch, number))
            except Exception as error:
                self._raised = error  # Spark would keep a text of it alone.
                if self._stop is not None:
                    raise StopAsked from None  # Of a long text Java's stack overflows then.
                raise

        if not is_connected(self._spark):
            return carry_out
        self._files.forget_batches()
        self._noted = 0
        return RemoteBatches(work, self._files, self._around)

    def _wait_for_the_end(self) -> None:
        """Keep a batch from beginning until Spark has been told to stop, and then for good.

        Spark takes what is raised before for a failure, and says so at length.
        """
        self._next_batch_waits.set()
        for _ in range(int(_END_SECONDS_MAX / _END_LOOK_SECONDS)):
            if self._query is None or not self._query.isActive:
                break
            pause(_END_LOOK_SECONDS)
        raise StopAsked

    def _take_notes(self) -> None:
        """Take what batches have noted that run elsewhere."""
        for note in notes_of(self._files):
            if note.attempt <= self._noted:
                continue
            self._noted = note.attempt
            if note.done is not None:
                self._take(note.done.restored())
            if note.stopped:
                self._raised = StopAsked()
            if note.error is not None:
                self._raised = RemoteFailure(note.error, hopeless=note.hopeless)

    def _open(self, frame: "DataFrame", work: BatchWork) -> "StreamingQuery":
        mode = {"append": "append", "upsert": "update", "complete": "complete"}
        writer = (
            frame.writeStream.foreachBatch(self._carrier(work))
            .option("checkpointLocation", f"file://{self._files.checkpoint}")
            .outputMode(mode[self.flow.sink.mode])
            .queryName(self.flow.name)
        )
        if self._trigger.available_now:
            writer = writer.trigger(availableNow=True)
        elif self._trigger.continuous:
            writer = writer.trigger(processingTime="0 seconds")
        else:
            assert self._trigger.every is not None, "it was checked"
            every = read_duration_ms(self._trigger.every)
            writer = writer.trigger(processingTime=f"{every} milliseconds")
        from pyspark.errors import AnalysisException

        try:
            return writer.start()
        except AnalysisException as error:
            raise InvalidRequest(f"{self.flow.name}: {words_of(error)}") from error

    def _rejecting(self, steps: tuple[Step, ...]) -> "FlowRun":
        """Return the flow that carries rows to the dead letters ahead of a step with state."""
        names = [step.name for step in self.flow.steps]
        upto = self.flow.steps[: names.index(steps[-1].name) + 1]
        sink = structs.replace(
            self.flow.sink,
            name=f"{self.flow.sink.name}{REJECTED}",
            from_=steps[-1].name,
            format="noop",
            path=None,
            topic=None,
            table=None,
            catalog={},
            partition_by=(),
            mode="append",
            key=(),
        )
        return FlowRun(
            self._definition,
            structs.replace(self.flow, sink=sink, steps=upto),
            self._spark,
            self._clock,
            functions=self._frames.functions,
            trigger=self._trigger,
            around_batch=self._around,
        )

    def _take(self, done: BatchDone) -> None:
        self.status.rows_out += done.rows_out
        self.status.dead_letters += done.dead_letters
        if done.version is not None:
            self.status.version, self.status.counts = done.version, done.counts_states
        for (name, action), number in done.counts.items():
            if number:
                key = f"{name}/{action}"
                counts = self.status.failed_expectations
                self.status.failed_expectations = {**counts, key: counts.get(key, 0) + number}

    def _take_progress(self) -> None:
        query = self._query
        if query is None:
            return
        if is_connected(self._spark):
            self._take_notes()
        for each in query.recentProgress:
            progress: dict[str, Any] = each if isinstance(each, dict) else each.jsonValue()
            if progress["batchId"] <= self._seen or not progress.get("batchDuration"):
                continue
            if not total_of(progress, "numInputRows") and "addBatch" not in progress["durationMs"]:
                continue
            self._seen = progress["batchId"]
            self.status.take(progress)
            self.status.at_ms = self._clock.now_ms()
            self.status.error = None
            self._failures = 0
            self._pause_ms = read_duration_ms(self._definition.on_failure.backoff)
            written = self.status.rows_out - self._out_before
            self._out_before = self.status.rows_out
            self.status.out_per_second = written * 1000 / max(self.status.batch_ms, 1)
            self._files.report(self.status)
            self._note_beginning()
            self._mirror(progress)

    def _note_beginning(self) -> None:
        """Note where the first batch began, before Spark forgets it."""
        record = self._files.record()
        lines = self._files.offsets_of(0)
        if record is None or record.begins or record.starts or not lines:
            return
        begins = {
            name: dict(read_offset(json.loads(line)).from_)
            for name, line in zip(self.flow.streams, lines, strict=False)
        }
        self._files.note(structs.replace(record, begins=begins))

    def _mirror(self, progress: Mapping[str, Any]) -> None:
        """Show at the broker how far the flow is."""
        for name, (_, reached, _) in zip(self.flow.streams, offsets_of(progress), strict=False):
            options = read_options(self._frames.options_of(name), streaming=True, now_ms=0)
            try:
                brokers = brokers_of(options.access)
                move_for_holder(brokers, self._frames.subscription_of(name), reached)
            except DanubeError as error:
                _log.warning("%s: the subscription did not move: %s", self.flow.name, error)

    def _query_ended(self, query: "StreamingQuery") -> None:
        self._take_progress()  # Its last batch may have ended since somebody looked.
        error = query.exception()
        if isinstance(self._raised, StopAsked):
            self._end("STOPPED")
            return
        if error is None:
            self._end("DONE" if self._trigger.available_now else "STOPPED")
            return
        self._failed(self._raised or error)

    def _failed(self, error: Exception) -> None:
        self._query = None
        self._raised = None
        self.status.error = f"{self.flow.name} failed {self._place()}: {words_of(error)}"
        hopeless = error.hopeless if isinstance(error, RemoteFailure) else is_hopeless(error)
        if hopeless or self._failures >= self._definition.on_failure.restarts:
            self._end("FAILED")
            return
        self._failures += 1
        self.status.restarts += 1
        self.status.state = "RESTARTING"
        self._files.report(self.status)
        self._start_at_ms = self._clock.monotonic_ms() + self._pause_ms
        longest = read_duration_ms(self._definition.on_failure.max_backoff)
        self._pause_ms = min(self._pause_ms * 2, longest)

    def _place(self) -> str:
        """Say which batch was under way, and how far it was to go."""
        last = self._files.last_batch()
        batch = 0 if last is None else last + 1
        lines = self._files.offsets_of(batch)
        if not lines:
            return f"before batch {batch}"
        ends = [
            f"{topic} {offset}"
            for line in lines
            for topic, offset in read_offset(json.loads(line)).next.items()
        ]
        more = f" and {len(ends) - _ENDS_NAMED_MAX} more" if len(ends) > _ENDS_NAMED_MAX else ""
        return (
            f"in batch {batch}, which ends before {', '.join(ends[:_ENDS_NAMED_MAX])}{more}, and "
            "is repeated at the next start"
        )

    def _end(self, state: Literal["STOPPED", "DONE", "FAILED"]) -> None:
        self.status.state = state
        self.status.at_ms = self._clock.now_ms()
        self._query = None
        self._files.report(self.status)
        self._files.forget_stop()
        self._files.let_go()
        if state == "FAILED" and self.side is not None:
            self.side.stop()


def _ancestors(name: str, shape: Shape) -> set[str]:
    found: set[str] = set()
    waiting = list(shape.inputs.get(name, ()))
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += shape.inputs.get(each, ())
    return found
