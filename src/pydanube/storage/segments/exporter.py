"""Sees to it that what is durable in the journal reaches the segment store in time."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from pydanube.errors import DanubeError, NotFound, Unavailable
from pydanube.model.ids import TopicId
from pydanube.observability.counts import SegmentMetrics
from pydanube.observability.logging import Logger
from pydanube.runtime.clock import Clock, Timer
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.tasks import Failed, TaskScope
from pydanube.runtime.threads import WorkerThreads
from pydanube.storage.errors import Fenced, StoreFailed
from pydanube.storage.segments.backoff import Backoff
from pydanube.storage.segments.export_job import ExportJob, ExportSource
from pydanube.storage.segments.planning import (
    Export,
    ExportLimits,
    Unexported,
    may_begin,
    plan_exports,
)
from pydanube.storage.segments.topic_segments import TopicSegments
from pydanube.storage.segments.uploader import PATIENCE, Uploader

_PLANNED_MAX = 256
_PAUSE_MS = 100

_log = Logger(__name__)


class TopicExport:
    """What the exporter knows of one topic."""

    def __init__(self, log: ExportSource, segments: TopicSegments, exporter: "Exporter") -> None:
        self.log = log
        self.segments = segments
        self.bytes = 0
        self.since_ms = 0
        self.seals = 0
        self.fenced = False
        self.not_before_ms = 0
        self.backoff = exporter.new_backoff()
        self.failure: DanubeError | None = None
        """Why the last export came to nothing; None once one succeeds."""
        self.job: ExportJob | None = None
        self.waiters: list[asyncio.Future[None]] = []
        self._exporter = exporter
        self._seal_bytes = exporter.limits.seal_bytes

    @property
    def topic_id(self) -> TopicId:
        """Whose it is."""
        return self.segments.origin.topic_id

    def appended(self, size: int) -> None:
        """Count journaled bytes; called for every batch."""
        before = self.bytes
        self.bytes = before + size
        if before == 0:
            self._exporter.first_bytes(self)
        elif before < self._seal_bytes <= self.bytes:
            self._exporter.wake()

    def tell(self, error: DanubeError | None) -> None:
        """Tell whoever waits how the last export ended."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    def as_unexported(self) -> Unexported:
        """Return what planning needs to know."""
        return Unexported(
            topic_id=self.topic_id,
            bytes=self.bytes,
            since_ms=self.since_ms,
            position=self.log.unexported_position,
            not_before_ms=self.not_before_ms,
            sealing=self.seals > 0,
        )


class Exporter:
    """Decides and begins exports; each topic has one under way at most, in offset order.

    Whatever step a crash comes after, the next start begins again where the catalogue ends, and an
    object that is in no entry is swept up. While the store is out of order, exports under way keep
    what they have encoded and wait, and no others begin: an outage costs local space alone.
    A topic that cannot be exported while others can is tried again ever more rarely, and holds
    no memory in between; `failing` names it.
    """

    def __init__(
        self,
        uploader: Uploader,
        workers: WorkerThreads,
        clock: Clock,
        randomness: Randomness,
        limits: ExportLimits,
        *,
        metrics: SegmentMetrics,
        on_failure: Failed,
        short_of_space: Callable[[], bool],
    ) -> None:
        self.limits = limits
        self._metrics = metrics
        self._uploader = uploader
        self._workers = workers
        self._clock = clock
        self._tasks = TaskScope(on_failure)
        self._randomness = randomness
        self._short_of_space = short_of_space
        self._topics: dict[TopicId, TopicExport] = {}
        self._waiting: dict[TopicId, TopicExport] = {}
        """Those with something to export."""
        self._busy: dict[TopicId, Export] = {}
        self._planned: deque[Export] = deque()
        self._wakeup = asyncio.Event()
        self._timer: Timer | None = None
        self._stopped = False

    # Topics.

    def new_backoff(self) -> Backoff:
        """Return a series of delays."""
        return Backoff(self._randomness)

    def register(self, log: ExportSource, segments: TopicSegments) -> TopicExport:
        """Export a topic from now on; what it has already counts from this moment."""
        topic = TopicExport(log, segments, self)
        self._topics[topic.topic_id] = topic
        unexported = log.unexported_bytes
        if unexported:
            topic.appended(unexported)
        return topic

    def unregister(self, topic_id: TopicId) -> None:
        """Let a topic go, which is deleted or served elsewhere."""
        topic = self._topics.pop(topic_id, None)
        if topic is not None:
            self._waiting.pop(topic_id, None)
            topic.segments.removed = True
            if topic.job is not None:
                topic.job.gone = True
            topic.tell(NotFound(f"topic {topic.segments.origin.topic} is gone"))

    def topics(self) -> list[TopicExport]:
        """Return everybody who is exported here."""
        return list(self._topics.values())

    def is_busy(self, topic_id: TopicId) -> bool:
        """Tell whether an export of the topic is under way, perhaps of one that is gone."""
        return topic_id in self._busy

    @property
    def unexported_bytes(self) -> int:
        """What is in the journal and in no segment, of all topics."""
        return sum(topic.bytes for topic in self._waiting.values())

    def failing(self) -> list[TopicExport]:
        """Return the topics whose last export failed; their messages stay in the journal."""
        return [topic for topic in self._waiting.values() if topic.failure is not None]

    def first_bytes(self, topic: TopicExport) -> None:
        """Take note that a topic has something to export again."""
        topic.since_ms = self._clock.monotonic_ms()
        self._waiting[topic.topic_id] = topic
        # A timer that is set was set for something older, and everything is looked at then.
        if self._timer is None or topic.bytes >= self.limits.seal_bytes:
            self.wake()

    async def seal(self, topic_id: TopicId) -> None:
        """Wait until everything that is synced by now is in segments.

        While the store takes nothing, be it of this topic alone, this waits. Raises Fenced,
        NotFound or Corruption when waiting does not help.
        """
        topic = self._topics.get(topic_id)
        if topic is None:
            raise NotFound(f"topic {topic_id} is not exported here")
        end = topic.log.synced_end
        topic.seals += 1
        topic.not_before_ms = 0
        try:
            while topic.segments.end < end and topic.log.unexported_bytes:
                attempt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                topic.waiters.append(attempt)
                self.wake()
                with contextlib.suppress(StoreFailed):
                    await attempt
        finally:
            topic.seals -= 1

    # The loop.

    def wake(self) -> None:
        """Look whether something is due."""
        self._wakeup.set()

    def start(self) -> None:
        """Export what is due, until `stop`."""
        self._tasks.start(self._run(), "segment exporter")

    async def _run(self) -> None:
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            self._begin_what_is_due()

    async def stop(self) -> None:
        """Begin nothing more, and give up what is under way; the next start begins it again."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()
        for topic in self._topics.values():
            topic.tell(Unavailable("the broker is stopping"))

    def _begin_what_is_due(self) -> None:
        # While the store is out of order, those under way find out when it works again.
        if self._stopped or (self._busy and self._uploader.failure is not None):
            return
        if not self._planned:
            self._plan()
        while self._planned:
            export = self._planned[0]
            topic = self._waiting.get(export.topic_id)
            if topic is None or export.topic_id in self._busy:
                self._planned.popleft()
            elif may_begin(export, self._busy.values(), self.limits):
                self._begin(topic, self._planned.popleft())
            else:
                return  # The end of an export looks again.

    def _plan(self) -> None:
        now_ms = self._clock.monotonic_ms()
        plan = plan_exports(
            (
                topic.as_unexported()
                for topic in self._waiting.values()
                if not topic.fenced and topic.topic_id not in self._busy
            ),
            self.limits,
            now_ms=now_ms,
            short_of_space=self._short_of_space(),
        )
        self._planned.extend(plan.exports[:_PLANNED_MAX])
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if plan.look_again_ms is not None:
            seconds = max(plan.look_again_ms - now_ms, 1) / 1000
            self._timer = self._clock.call_later(seconds, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self.wake()

    def _begin(self, topic: TopicExport, export: Export) -> None:
        self._busy[topic.topic_id] = export
        topic.job = ExportJob(
            topic.log, topic.segments, self._uploader, self._workers, self._clock, topic.backoff
        )
        self._tasks.start(
            self._carry_out(topic, topic.job, export), f"export of {topic.segments.origin.topic}"
        )

    async def _carry_out(self, topic: TopicExport, job: ExportJob, export: Export) -> None:
        began_ms = self._clock.monotonic_ms()
        try:
            # While it tries, no others begin: who was refused alone before is not patient again.
            refused = isinstance(topic.failure, StoreFailed)
            progressed = await job.run(export.bytes, patience=1 if refused else PATIENCE)
        except DanubeError as error:
            self._ended(topic, began_ms, error)
        except Exception as error:
            # Whatever it is, it must not end the export of this topic for good, nor of others.
            self._ended(topic, began_ms, DanubeError(f"unexpected: {error!r}"))
            raise
        else:
            self._ended(topic, began_ms, None)
            if not progressed:
                # Nothing of it is synced yet; without a pause this would go round in circles.
                topic.not_before_ms = self._clock.monotonic_ms() + _PAUSE_MS
        finally:
            topic.job = None
            del self._busy[topic.topic_id]
            self.wake()

    def _ended(self, topic: TopicExport, began_ms: int, error: DanubeError | None) -> None:
        # Exactly, from the index: what came in meanwhile is counted twice otherwise.
        topic.bytes = topic.log.unexported_bytes
        topic.since_ms = began_ms
        topic.failure = error
        if topic.bytes == 0:
            self._waiting.pop(topic.topic_id, None)
        if error is None:
            topic.backoff.reset()
            topic.not_before_ms = 0
        else:
            self._metrics.exports_failed += 1
            topic.fenced = isinstance(error, Fenced)
            delay_ms = int(topic.backoff.next_seconds() * 1000)
            topic.not_before_ms = self._clock.monotonic_ms() + delay_ms
            _log.warning(
                "a topic could not be exported; its messages stay in the journal",
                topic=topic.segments.origin.topic,
                cause=str(error),
            )
        topic.tell(error)
