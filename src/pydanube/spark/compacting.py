"""Joins small segments of a topic in Spark's tasks; the topic's broker swaps them.

A task reads neighbouring segments, checks them, and writes one in their place to the topic's
directory, where no catalogue names it. The broker checks that object to its last page, writes it
under a name of its own and swaps the entries in one transaction, or refuses because they are not
the same any more. So a job may die anywhere, or run twice: what it leaves behind is swept up.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from msgspec import Struct, structs

from pydanube.errors import Conflict, Corruption, DanubeError, InvalidRequest, Unavailable
from pydanube.model.ids import Offset, TopicId
from pydanube.runtime.blocking import environment
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.randomness import SystemRandomness
from pydanube.spark.brokers import Brokers, found_brokers
from pydanube.spark.frames import option_texts
from pydanube.spark.options import DEFAULT_URL, URL_VARIABLE, ReadOptions, read_options
from pydanube.spark.source.segment_files import SegmentFiles, directory_of
from pydanube.storage.config import Durable
from pydanube.storage.segments.decoding import read_layout
from pydanube.storage.segments.encoding import SegmentEncoder, SegmentOrigin
from pydanube.storage.segments.planning import plan_compactions
from pydanube.storage.segments.staged import staged_key
from pydanube.wire.flight.descriptors import (
    JoinSegmentsAction,
    JoinSegmentsAnswer,
    ListedSegment,
    ListSegmentsAction,
    ListSegmentsAnswer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

TARGET_BYTES = 256 * 1024 * 1024
"""What a joined segment holds at most, before compression."""
RUN_MIN = 2
TASKS_AT_ONCE = 64
JOIN_WAIT_MS = 300_000
"""What a broker may take to check an object and to write it."""

_ANSWERS = pa.schema([("number", pa.int64()), ("answer", pa.binary())])


class JoinTask(Struct, frozen=True, kw_only=True):
    """One run to join."""

    topic: str
    """A physical one."""
    topic_id: str
    epoch: int
    segments: list[ListedSegment]


class StagedRun(Struct, frozen=True, kw_only=True):
    """What a task has written."""

    key: str
    bytes: int
    crc32c: int


class Compacted(Struct, frozen=True, kw_only=True):
    """What a job came to, or would."""

    topic: str
    segments: int
    """That the topic had."""
    runs: int
    """Worth joining."""
    joined: int
    """Segments that others have taken the place of."""
    into: int
    """Those others."""
    rows: int
    refused: list[str]
    """Runs that stayed as they were, with the reason: somebody else was faster, or damage."""
    dry_run: bool = False

    @property
    def segments_after(self) -> int:
        """How many segments the topic has now, as far as this job goes."""
        return self.segments - self.joined + self.into


def compact(
    spark: "SparkSession",
    topic: str,
    *,
    target_bytes: int = TARGET_BYTES,
    run_min: int = RUN_MIN,
    dry_run: bool = False,
    progress: Callable[[Compacted], None] | None = None,
    **options: object,
) -> Compacted:
    """Join small neighbouring segments of a topic; offsets and messages stay what they are.

    `options` are those of the data source; executors need the store, to read and to write it.
    """
    parsed = read_options(
        option_texts({"topic": topic, **options}),
        streaming=False,
        now_ms=SystemClock().now_ms(),
        default_url=environment(URL_VARIABLE) or DEFAULT_URL,
    )
    brokers = found_brokers(parsed.access)
    listed = brokers.act("segments.list", ListSegmentsAction(topic=topic), ListSegmentsAnswer)
    store = _store(parsed, listed.store)
    tasks = [
        JoinTask(topic=name, topic_id=found.id, epoch=found.epoch, segments=run)
        for name, found in sorted(listed.topics.items())
        for run in plan_compactions(found.segments, run_min, target_bytes)
    ]
    state = Compacted(
        topic=topic,
        segments=sum(len(each.segments) for each in listed.topics.values()),
        runs=len(tasks),
        joined=0,
        into=0,
        rows=0,
        refused=[],
        dry_run=dry_run,
    )
    if dry_run or not tasks:
        return state
    return _join(spark, brokers, store, tasks, state, progress)


def _join(
    spark: "SparkSession",
    brokers: Brokers,
    store: Durable,
    tasks: list[JoinTask],
    state: Compacted,
    progress: Callable[[Compacted], None] | None,
) -> Compacted:
    for task, staged in _staged(spark, store, tasks):
        try:
            _swap(brokers, task, staged)
        except (Conflict, Corruption) as error:
            refused = [*state.refused, f"{task.topic} from {task.segments[0].from_}: {error}"]
            state = structs.replace(state, refused=refused)
        except DanubeError:
            SegmentFiles(store).delete(staged.key)
            raise
        else:
            state = structs.replace(
                state,
                joined=state.joined + len(task.segments),
                into=state.into + 1,
                rows=state.rows + task.segments[-1].to - task.segments[0].from_,
            )
        if progress is not None:
            progress(state)
    return state


def _staged(
    spark: "SparkSession", store: Durable, tasks: list[JoinTask]
) -> "Iterator[tuple[JoinTask, StagedRun]]":
    """Have tasks done some at a time, so that what they stage is swapped soon."""
    from pyspark.errors import PySparkException

    for first in range(0, len(tasks), TASKS_AT_ONCE):
        some = tasks[first : first + TASKS_AT_ONCE]
        numbers = spark.range(0, len(some), 1, len(some))
        job = numbers.mapInArrow(JoinJob(store, some), "number bigint, answer binary")
        try:
            answers = job.toArrow().to_pylist()
        except PySparkException as error:
            raise Unavailable(f"the job in Spark failed: {_cause(error)}") from error
        for each in answers:
            yield some[each["number"]], msgspec.msgpack.decode(each["answer"], type=StagedRun)


def _cause(error: Exception) -> str:
    """Return the line that says what went wrong in a task, out of Java's and Python's traces."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if line.startswith("pydanube.")]
    return (named or [line for line in lines if line] or [type(error).__name__])[-1]


def _swap(brokers: Brokers, task: JoinTask, staged: StagedRun) -> None:
    order = JoinSegmentsAction(
        topic=task.topic,
        id=task.topic_id,
        keys=[each.key for each in task.segments],
        object=staged.key,
        bytes=staged.bytes,
        crc32c=staged.crc32c,
    )
    brokers.act("segments.join", order, JoinSegmentsAnswer, JOIN_WAIT_MS)


class JoinJob:
    """What an executor runs: the tasks whose numbers it is given."""

    def __init__(self, store: Durable, tasks: list[JoinTask]) -> None:
        self._store = store
        self._tasks = tasks

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Yield what each task has staged."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                staged = self.stage(self._tasks[number])
                answer = msgspec.msgpack.encode(staged)
                yield pa.RecordBatch.from_pylist(
                    [{"number": number, "answer": answer}], schema=_ANSWERS
                )

    def stage(self, task: JoinTask) -> StagedRun:
        """Join a run, and write it where the broker finds it."""
        files = SegmentFiles(self._store)
        origin = SegmentOrigin(
            topic=task.topic, topic_id=TopicId(int(task.topic_id)), epoch=task.epoch
        )
        encoder = SegmentEncoder(origin, Offset(task.segments[0].from_))
        for each in task.segments:
            data = files.whole(each.key, each.bytes, each.crc32c)
            layout = read_layout(
                data,
                len(data),
                topic_id=origin.topic_id,
                base=Offset(each.from_),
                rows=each.to - each.from_,
            )
            for number, group in enumerate(layout.groups):
                encoder.add(
                    layout.decode(number, data[group.position : group.position + group.size])
                )
        segment = encoder.finish()
        key = staged_key(origin, SystemRandomness().below(2**64))
        files.put(key, segment.data)
        return StagedRun(key=key, bytes=len(segment.data), crc32c=segment.crc32c)


def _store(options: ReadOptions, told: str) -> Durable:
    store = options.store or Durable(root=told)
    if options.store is None and directory_of(store) is None:
        raise InvalidRequest(
            f"the segments lie in {told}: give option store.root and credentials that may read and "
            "write there, named as in the broker's storage.durable"
        )
    return store
