"""Sends the records of many topics to one mirror: what gathers meanwhile shares the next call."""

import asyncio

from pydanube.cluster.mirrors.copies import Copy
from pydanube.cluster.mirrors.peers import Peers
from pydanube.errors import DanubeError
from pydanube.model.ids import BrokerId, TopicId
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.errors import Fenced
from pydanube.storage.mirrors.mirror_logs import Section
from pydanube.storage.storage import Storage

CALL_BYTES = 4 * 1024 * 1024
"""Per call; one record always passes."""
CALLS_MAX = 4
"""Under way at once: while one is synced, the next ones travel."""
CATCH_UPS_MAX = 16
PAUSE_SECONDS = 0.1

_log = get_logger(__name__)


class Link:
    """All copies on one broker. It owns the tasks that bring them there."""

    def __init__(
        self, broker: BrokerId, peers: Peers, storage: Storage, clock: Clock, tasks: TaskScope
    ) -> None:
        self.broker = broker
        self.copies: dict[TopicId, Copy] = {}
        self._peers = peers
        self._storage = storage
        self._clock = clock
        self._tasks = tasks
        self._waiting: dict[TopicId, Copy] = {}
        """Those with something to send, in the order in which they got it."""
        self._wakeup = asyncio.Event()
        self._calls = 0
        self._catch_ups = asyncio.Semaphore(CATCH_UPS_MAX)
        self._reachable = True
        self._closed = False

    def start(self) -> None:
        """Begin to send."""
        self._tasks.start(self._run(), f"mirror on broker {self.broker}")

    def add(self, copy: Copy) -> None:
        """Bring a topic to this mirror from now on."""
        self.copies[copy.topic_id] = copy
        self._tasks.start(self._bring_up(copy), f"copy of {copy.topic} on {self.broker}")

    def remove(self, copy: Copy) -> None:
        """Send nothing of a topic any more."""
        copy.close()
        if self.copies.get(copy.topic_id) is copy:
            del self.copies[copy.topic_id]

    def has_records(self, copy: Copy) -> None:
        """Take in that there is something to send."""
        if copy.topic_id not in self._waiting:
            self._waiting[copy.topic_id] = copy
            self._wakeup.set()

    def restart(self, copy: Copy) -> None:
        """Bring a copy up to date that does not follow any more."""
        if copy.closed or not copy.is_live.is_set():
            return
        copy.stop_following()
        self._tasks.start(self._bring_up(copy), f"copy of {copy.topic} on {self.broker}")

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        self._wakeup.set()

    async def _run(self) -> None:
        while not self._closed:
            sections = self._gather() if self._calls < CALLS_MAX else []
            if sections:
                self._calls += 1
                self._tasks.start(self._send(sections), f"records to broker {self.broker}")
            else:
                self._wakeup.clear()
                await self._wakeup.wait()

    def _gather(self) -> list[tuple[Copy, int, Section]]:
        gathered: list[tuple[Copy, int, Section]] = []
        left = CALL_BYTES
        while self._waiting and left > 0:
            copy = self._waiting.pop(next(iter(self._waiting)))
            section = copy.next_section(left)
            if section is None:
                continue
            gathered.append((copy, copy.attempt, section))
            left -= sum(record.size for record in section.records)
            if copy.sent < copy.stream.replication.last:
                self._waiting[copy.topic_id] = copy
        return gathered

    async def _send(self, sections: list[tuple[Copy, int, Section]]) -> None:
        try:
            answers = await self._peers.append(self.broker, [each for _, _, each in sections])
        except DanubeError as error:
            self._lost(error)
            for copy, attempt, _ in sections:
                if attempt == copy.attempt:
                    copy.failure = error
                    self.restart(copy)
        else:
            self._reached()
            for (copy, attempt, _), answer in zip(sections, answers, strict=True):
                if attempt == copy.attempt and not copy.answered(answer):
                    self.restart(copy)
        finally:
            self._calls -= 1
            self._wakeup.set()

    async def _bring_up(self, copy: Copy) -> None:
        if copy.pause_seconds:
            await self._clock.sleep(copy.pause_seconds)
        while not (copy.closed or self._closed or copy.is_live.is_set() or copy.stream.failure):
            try:
                async with self._catch_ups:
                    await copy.bring_up(self._peers, self._storage)
            except Fenced as error:
                if not copy.closed:
                    copy.stream.fail(error)
                return
            except DanubeError as error:
                copy.failure = error
                self._lost(error)
                await self._clock.sleep(PAUSE_SECONDS)
            else:
                self._reached()
        if copy.is_live.is_set():
            self.has_records(copy)

    def _lost(self, error: DanubeError) -> None:
        if self._reachable:
            _log.warning("a mirror does not follow", broker=self.broker, cause=str(error))
        self._reachable = False

    def _reached(self) -> None:
        if not self._reachable:
            _log.info("a mirror follows again", broker=self.broker)
        self._reachable = True
