"""`spark.readStream.format("danube")`: follows topics from offset to offset."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from typing_extensions import override

from pydanube.model.names import split_partition
from pydanube.runtime.blocking import pause
from pydanube.runtime.clock import SystemClock
from pydanube.spark.brokers import brokers_of
from pydanube.spark.errors import DataLoss
from pydanube.spark.options import ReadOptions
from pydanube.spark.registry import ReaderSchema
from pydanube.spark.source.batch_reader import TaskPartition
from pydanube.spark.source.cursors import Cursors
from pydanube.spark.source.following import Sizing, next_offset, waiting_rows
from pydanube.spark.source.hints import plan_tasks
from pydanube.spark.source.offsets import (
    StreamOffset,
    initial_offset,
    read_offset,
    write_offset,
)
from pydanube.spark.source.planning import Limits, TopicState, plan_pieces
from pydanube.spark.source.ranges import check_vector, lost_by, starts_of
from pydanube.spark.source.reading import read_task
from pydanube.spark.source.topics import Topics

_log = logging.getLogger("pydanube.spark")

_REPORT_AGE_MS_MAX = 1_000


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers Spark's questions in the driver's process, and reads pieces in those of tasks.

    Whatever decides which rows a batch holds is in the offsets that Spark journals first, so a
    batch that is run again reads the same rows in the same tasks.
    """

    def __init__(
        self, options: ReadOptions, schema: pa.Schema, reader: ReaderSchema | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._reader = reader
        self._following: _Following | None = None

    @property
    def _driver(self) -> "_Following":
        # Made on first use: tasks get an instance of their own, and never ask.
        if self._following is None:
            self._following = _Following(self._options)
        return self._following

    @override
    def initialOffset(self) -> dict[str, Any]:
        return write_offset(self._driver.begin())

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = read_offset(start)
        after = self._driver.follow(before, self._limits(limit))
        return start if after is before else write_offset(after)

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        return ReadMaxBytes(self._options.bytes_max)

    def _limits(self, limit: ReadLimit) -> Limits:
        if isinstance(limit, ReadAllAvailable):
            return Limits()
        rows, size = self._options.rows_max, self._options.bytes_max
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows if rows is None else min(rows, limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            size = min(size, limit.max_bytes)
        return Limits(rows=rows, bytes=size)

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._driver.fix_target()

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._driver.report()

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._driver.plan(read_offset(start), read_offset(end))

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskPartition):
            return iter(())
        return read_task(self._options, partition.task, self._schema, (), self._reader)

    @override
    def commit(self, end: dict[str, Any]) -> None:
        self._driver.commit(read_offset(end))

    @override
    def stop(self) -> None:
        """Spark does not promise to call this, so nothing waits for it."""


class _Following:
    """The driver's side of a stream."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._clock = SystemClock()
        brokers = brokers_of(options.access)
        self._topics = Topics(brokers, options.selection)
        self._cursors = Cursors(brokers, options) if options.subscription is not None else None
        self._discovered_ms: int | None = None
        self._states: Mapping[str, TopicState] = {}
        self._states_ms = 0
        self._target: dict[str, int] | None = None
        self._waiting_since_ms: int | None = None
        self._warned: set[str] = set()

    # Where to begin.

    def begin(self) -> StreamOffset:
        options = self._options
        states = self._look()
        self._topics.must_exist(states)
        starts = self._starts(states)
        if self._cursors is not None:
            standing = self._cursors.begin(starts)
            if options.starting_offsets in ("latest", "committed") and not options.starting_time_ms:
                # Where a query stood that never ran a batch: nothing since then is skipped.
                starts = starts_of(standing, states, strict=options.fail_on_data_loss)
        elif options.starting_offsets == "latest" and options.starting_time_ms is None:
            self._warn_once(
                "latest",
                "messages that are published while a query that has not yet run a batch is down "
                "are skipped with startingOffsets=latest; name a subscription to keep the place",
            )
        return initial_offset(starts, {name: states[name].id for name in starts})

    def _starts(self, states: Mapping[str, TopicState]) -> Mapping[str, int]:
        options = self._options
        if options.starting_time_ms is not None:
            return self._topics.at_time(states, options.starting_time_ms)
        match options.starting_offsets:
            case "earliest" | "committed":
                return {name: state.earliest for name, state in states.items()}
            case "latest":
                return {name: state.frontier for name, state in states.items()}
            case vector:
                check_vector("startingOffsets", vector, states)
                return starts_of(vector, states, strict=options.fail_on_data_loss)

    # How far to go.

    def follow(self, start: StreamOffset, limits: Limits) -> StreamOffset:
        options = self._options
        states = self._look(start.next, 0 if self._target is not None else options.poll_ms)
        if not options.fail_on_data_loss:
            for topic, loss in lost_by(start, states, set(start.next)).items():
                self._warn_once(topic, f"going on without what is lost: {loss}")
        if self._target is None and self._must_wait(start, states):
            return start
        end = next_offset(
            start,
            states,
            selected=self._is_selected,
            target=self._target,
            limits=limits,
            sizing=Sizing(
                task_bytes=options.task_bytes, tasks_min=options.tasks_min, split=options.split
            ),
            strict=options.fail_on_data_loss,
        )
        if end is not start:
            self._waiting_since_ms = None
        return end

    def _must_wait(self, start: StreamOffset, states: Mapping[str, TopicState]) -> bool:
        """Tell whether there are too few rows yet; Spark asks again at once, so not too often."""
        now_ms = self._clock.monotonic_ms()
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        rows = waiting_rows(start, states)
        waited_ms = now_ms - self._waiting_since_ms
        if rows >= self._options.rows_min or waited_ms >= self._options.delay_ms_max:
            return False
        if rows:
            pause(self._options.poll_ms / 1000)
        return True

    def fix_target(self) -> None:
        states = self._look()
        self._target = {name: state.frontier for name, state in states.items()}

    def report(self) -> dict[str, Any] | None:
        if self._clock.monotonic_ms() - self._states_ms > _REPORT_AGE_MS_MAX:
            self._look()
        if not self._states:
            return None
        return write_offset(
            StreamOffset(
                grid=0,
                ids={name: state.id for name, state in self._states.items()},
                next={name: state.frontier for name, state in self._states.items()},
            )
        )

    # What to read.

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[TaskPartition]:
        pieces = plan_pieces(start, end)
        if pieces and any(piece.topic not in self._states for piece in pieces):
            self._look()
        if self._options.fail_on_data_loss:
            for piece in pieces:
                state = self._states.get(piece.topic)
                if state is None or state.id != piece.id:
                    what = "the topic is gone" if state is None else "it was created anew since"
                    raise DataLoss(piece.topic, f"offset {piece.start}", what)
        sizes = {name: state.row_bytes for name, state in self._states.items()}
        tasks = plan_tasks(self._options, self._topics, pieces, sizes)
        return [TaskPartition(task) for task in tasks]

    def commit(self, end: StreamOffset) -> None:
        if self._cursors is not None:
            self._cursors.advance(end.next)

    def _look(
        self, after: Mapping[str, int] | None = None, wait_ms: int = 0
    ) -> Mapping[str, TopicState]:
        now_ms = self._clock.monotonic_ms()
        stale = self._discovered_ms is None or (
            now_ms - self._discovered_ms >= self._options.discovery_ms
        )
        if stale:
            self._topics.discover()
            self._discovered_ms = now_ms
        self._states = self._topics.states(after, wait_ms)
        self._states_ms = self._clock.monotonic_ms()
        return self._states

    def _is_selected(self, topic: str) -> bool:
        base, _ = split_partition(topic) or (topic, 0)
        return base in self._topics.bases or topic in self._topics.bases

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            _log.warning("%s", text)
