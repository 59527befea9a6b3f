"""Bringing copies to one mirror: what does not help is tried again ever more rarely."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from pydanube.cluster.mirrors.copies import LAST_PAUSE_SECONDS, Copy
from pydanube.cluster.mirrors.link import Link
from pydanube.model.ids import BrokerId, Offset, TopicId
from pydanube.observability.counts import MirrorMetrics
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.journal.records import Kind
from pydanube.storage.mirrors.mirror_logs import Holding, Outcome, Section, SectionAnswer
from pydanube.storage.mirrors.stream import TopicStream, WaitingBytes
from pydanube.storage.topic_log import Snapshot

OWN, MIRROR = BrokerId(1), BrokerId(2)
PATIENCE_MS = 3_000


class ForgetfulMirror:
    """Says that it has everything, and lacks the first record that it is sent."""

    def __init__(self, stream: TopicStream) -> None:
        self.stream = stream
        self.begun: list[float] = []
        self.is_well = False

    async def begin(self, *_: Any, **__: Any) -> Holding:
        self.begun.append(asyncio.get_running_loop().time())
        return Holding(promised=5, epoch=5, stream=77, sequence=0, start=Offset(0), end=Offset(0))

    async def append(self, _: BrokerId, sections: list[Section]) -> list[SectionAnswer]:
        await asyncio.sleep(0.001)
        outcome = Outcome.SYNCED if self.is_well else Outcome.MISSING
        answer = SectionAnswer(outcome=outcome, epoch=5, sequence=1, end=Offset(1))
        return [answer for _ in sections]


class EmptyLog:
    unexported_start = Offset(0)

    def snapshot(self) -> Snapshot:
        return Snapshot(Offset(0), ())


class NoSubscriptions:
    def progress_of_topic(self, topic_id: TopicId) -> dict[Any, Any]:
        return {}


class Following:
    """A topic with one record that a mirror shall have."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.tasks = TaskScope(lambda name, error: pytest.fail(f"{name}: {error}"))
        self.metrics = MirrorMetrics()
        self.stream = TopicStream(TopicId(1), 5, 77, OWN, WaitingBytes(1000, 1000))
        self.mirror = ForgetfulMirror(self.stream)
        # No more of storage, log and peers is used than these fakes have.
        log: Any = EmptyLog()
        storage: Any = NoSubscriptions()
        peers: Any = self.mirror
        self.copy = Copy("/default/t", MIRROR, self.stream, log, self.clock, self.metrics)
        self.stream.keep_for(MIRROR, 0)
        self.stream.add(Kind.BATCH, 0, (b"record",))
        self.link = Link(MIRROR, peers, storage, self.clock, self.tasks)
        self.link.start()
        self.link.add(self.copy)


def test_a_mirror_that_lacks_something_again_and_again_is_tried_ever_more_rarely() -> None:
    async def main(_: Randomness) -> None:
        following = Following()
        await asyncio.sleep(60)
        begun = following.mirror.begun
        assert begun[1] - begun[0] < 0.1, "once it may have restarted"
        pauses = [round(after - before, 2) for before, after in pairwise(begun[1:])]
        assert pauses == sorted(pauses)
        assert pauses[-1] >= LAST_PAUSE_SECONDS
        assert len(begun) < 25
        assert following.metrics.setbacks == {("2",): len(begun)}
        now_ms = following.clock.monotonic_ms()
        assert now_ms - following.copy.moved_ms > PATIENCE_MS, "it is to be replaced"
        await following.tasks.close()

    run_simulated(main, 1)


def test_a_mirror_that_follows_again_has_its_setbacks_behind_it() -> None:
    async def main(_: Randomness) -> None:
        following = Following()
        await asyncio.sleep(5)
        following.mirror.is_well = True
        await asyncio.sleep(10)
        assert following.copy.is_complete
        assert following.copy.pause_seconds == 0
        assert following.copy.failure is None
        await following.tasks.close()

    run_simulated(main, 1)
