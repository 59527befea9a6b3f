"""Asking the brokers of topics: each once, those that change hands again, and not for ever."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from typing_extensions import override

from pydanube.broker.servicers.flight_questions import (
    AskCursor,
    AskExtent,
    AskFrontier,
    Extent,
    Question,
)
from pydanube.broker.servicers.flight_topics import ASK_SECONDS, FlightTopics, Peer, Peers
from pydanube.errors import Conflict, DanubeError, NotFound, Unavailable
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.wire.flight.descriptors import CursorAction, CursorAnswer

HERE, THERE, FAR = "/default/here", "/default/there", "/default/far"
CURSOR = CursorAction(subscription="s", topic=HERE, position="latest")


def answer_of(question: Question, name: str) -> Struct:
    if isinstance(question, AskCursor):
        return CursorAnswer(
            topic=name, subscription="s", position=0, frontier=0, id="1", earliest=0, holds=True
        )
    return Extent(id=name, first=0, end=1)


class FakeTopics:
    """Three topics, of which this broker serves one."""

    placement = None

    def __init__(self) -> None:
        self.names = {HERE, THERE, FAR}

    def find(self, name: str) -> object | None:
        return name if name == HERE else None

    def partitions(self, name: str) -> list[str]:
        return [name] if name in self.names else []

    def get(self, name: str) -> object:
        raise NotFound(f"topic {name} does not exist")


class FakeParts:
    async def answer(self, question: Question) -> Mapping[str, Struct]:
        return {name: answer_of(question, name) for name in question.names}


class FakePeers(Peers):
    """Brokers 2 and 3; each serves what it is said to."""

    def __init__(self) -> None:
        self.owners: dict[str, int | None] = {THERE: 2, FAR: 3}
        self.serve: dict[int, set[str]] = {2: {THERE}, 3: {FAR}}
        self.asked: list[tuple[int, list[str]]] = []
        self.failures: dict[int, DanubeError] = {}

    @override
    def owner_of(self, topic: str) -> Peer | None:
        owner = self.owners[topic]
        return Peer(owner, f"peer{owner}", f"grpc+tcp://broker{owner}") if owner else None

    @override
    async def ask(self, peer: Peer, question: Question, seconds_max: float) -> bytes:
        self.asked.append((peer.broker, question.names))
        failure = self.failures.get(peer.broker)
        if failure is not None:
            raise failure
        told = [name for name in question.names if name in self.serve[peer.broker]]
        return msgspec.msgpack.encode({name: answer_of(question, name) for name in told})


class World:
    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.topics = FakeTopics()
        self.peers = FakePeers()
        # No more of topics and parts is used than these fakes have.
        topics: Any = self.topics
        parts: Any = FakeParts()
        self.flight = FlightTopics(topics, parts, self.clock, "grpc+tcp://broker1", self.peers)

    async def places(self) -> dict[str, str]:
        told = await self.flight.ask(AskExtent(names=[FAR, HERE, THERE]), Extent)
        assert all(each.answer.id == name for name, each in told.items())
        return {name: each.location for name, each in told.items()}


def test_every_broker_is_asked_once_and_answers_come_in_the_order_of_the_question() -> None:
    async def main(_: Randomness) -> None:
        world = World()
        assert list((await world.places()).items()) == [
            (FAR, "grpc+tcp://broker3"),
            (HERE, "grpc+tcp://broker1"),
            (THERE, "grpc+tcp://broker2"),
        ]
        assert sorted(world.peers.asked) == [(2, [THERE]), (3, [FAR])]

    run_simulated(main, 1)


def test_a_topic_that_changes_hands_is_asked_for_alone() -> None:
    async def main(_: Randomness) -> None:
        world = World()
        world.peers.serve[2].clear()

        def arrive() -> None:
            world.peers.owners[THERE] = 3
            world.peers.serve[3].add(THERE)

        world.clock.call_later(1.0, arrive)
        assert (await world.places())[THERE] == "grpc+tcp://broker3"
        assert [each for each in world.peers.asked if FAR in each[1]] == [(3, [FAR])]
        assert world.peers.asked[-1] == (3, [THERE])

    run_simulated(main, 1)


def test_a_topic_that_nobody_serves_is_given_up_and_left_out_of_lists() -> None:
    async def main(_: Randomness) -> None:
        world = World()
        world.peers.owners[THERE] = None
        question = AskExtent(names=[FAR, HERE, THERE])
        assert set(await world.flight.ask_once(question, Extent)) == {FAR, HERE}
        began = world.clock.monotonic_seconds()
        with pytest.raises(Unavailable, match=THERE):
            await world.places()
        assert ASK_SECONDS <= world.clock.monotonic_seconds() - began < 2 * ASK_SECONDS

    run_simulated(main, 1)


def test_a_topic_that_is_deleted_meanwhile_is_not_waited_for() -> None:
    async def main(_: Randomness) -> None:
        world = World()
        world.peers.owners[THERE] = None
        world.topics.names.discard(THERE)
        with pytest.raises(NotFound):
            await world.places()

    run_simulated(main, 1)


def test_a_broker_that_does_not_answer_is_asked_again_unless_it_may_have_changed_something() -> (
    None
):
    async def main(_: Randomness) -> None:
        world = World()
        world.peers.failures[2] = Unavailable("away")
        world.clock.call_later(1.0, world.peers.failures.clear)
        assert len(await world.places()) == 3
        world.peers.failures[2] = Unavailable("away")
        world.peers.asked.clear()
        change = AskCursor(names=[THERE], verb="create", action=CURSOR)
        with pytest.raises(Unavailable, match="away"):
            await world.flight.ask(change, CursorAnswer)
        assert world.peers.asked == [(2, [THERE])]

    run_simulated(main, 1)


def test_a_refusal_is_told_as_it_is() -> None:
    async def main(_: Randomness) -> None:
        world = World()
        world.peers.failures[3] = Conflict("not reliable")
        with pytest.raises(Conflict, match="not reliable"):
            await world.flight.ask(AskFrontier(names=[FAR]), Extent)

    run_simulated(main, 1)
