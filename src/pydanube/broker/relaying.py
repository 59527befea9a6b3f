"""Serves consumers at a broker that their topic has left, by way of the broker that serves it.

Clients learn from polls of their health that a topic has moved. Most of them give the polls up
after one that fails, and then come back to the broker they know for as long as they live.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final, cast
from urllib.parse import urlsplit

from typing_extensions import override

from pydanube.broker.forwarding import FORWARD_SECONDS, FORWARDED
from pydanube.broker.peer_channels import Connect, PeerChannels
from pydanube.broker.servicers.consumer import REFUSAL_PAUSE_SECONDS, Relay
from pydanube.errors import WrongBroker
from pydanube.model.ids import ConsumerId
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope
from pydanube.topics.manager import TopicManager
from pydanube.wire.calls import Body, Call, CallRefused, Reply, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.convert import delivered_place, settled_place

_LOOK_MS: Final = 1_000
"""To look all consumers up takes long, and anybody can ask for one that does not exist."""


class _Way:
    """What has been relayed of a topic on one connection of a client, while it has streams."""

    def __init__(self) -> None:
        self.streams = 0
        self.unsettled: set[tuple[str, int]] = set()
        """Subscriptions and offsets: what is unacked, and what was given up meanwhile."""


class Relaying(Relay):
    """Finds the broker that serves a consumer's topic, and passes on what either side says."""

    def __init__(
        self, topics: TopicManager, clock: Clock, tasks: TaskScope, connect: Connect
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._tasks = tasks
        self._channels = PeerChannels(connect)
        self._topics_of: dict[ConsumerId, str] = {}
        self._looked_ms: int | None = None
        self._ways: dict[tuple[str, str], _Way] = {}
        """By a client's connection and topic."""

    async def close(self) -> None:
        """Release all connections."""
        await self._channels.close()

    @override
    def messages(
        self, consumer: ConsumerId, request: bytes, call: Call
    ) -> AsyncIterator[Sequence[Body]] | None:
        topic = None if FORWARDED in call.metadata else self._topic_of(consumer)
        absence = self._topics.absence(topic) if topic is not None else None
        if topic is None or absence is None or self._topics.find(topic) is not None:
            return None
        if not isinstance(absence, WrongBroker) or absence.owner is None:
            raise absence
        return self._messages((call.peer, topic), absence.owner, request)

    def _topic_of(self, consumer: ConsumerId) -> str | None:
        now_ms = self._clock.monotonic_ms()
        is_due = self._looked_ms is None or now_ms - self._looked_ms >= _LOOK_MS
        if consumer not in self._topics_of and is_due:
            self._looked_ms = now_ms
            self._topics_of = self._topics.catalog.topics_of_consumers()
        return self._topics_of.get(consumer)

    async def _messages(
        self, way: tuple[str, str], owner: str, request: bytes
    ) -> AsyncIterator[Sequence[Body]]:
        channel = self._channels.to(urlsplit(owner).netloc)
        stream = channel.stream(services.RECEIVE_MESSAGES.path, request, metadata={FORWARDED: "1"})
        passed = self._ways.setdefault(way, _Way())
        passed.streams += 1
        try:
            async with aclosing(cast(Any, stream)):
                async for message in stream:
                    passed.unsettled.add(delivered_place(message))
                    yield [message]
        except CallRefused as refused:
            # Clients give up for good at most other codes, and the topic is somewhere.
            await self._clock.sleep(REFUSAL_PAUSE_SECONDS)
            raise CallRefused(StatusCode.UNAVAILABLE, refused.text) from refused
        finally:
            passed.streams -= 1
            if not passed.streams:
                del self._ways[way]

    @override
    def settle(self, absence: WrongBroker, request: bytes, call: Call, reply: Reply) -> bool:
        if absence.owner is None or FORWARDED in call.metadata:
            return False
        way = self._ways.get((call.peer, absence.topic), _Way())
        place = settled_place(request)
        # The owner counts nacks of what it has delivered itself, and takes others for repeats.
        if call.path == services.NACK.path and place not in way.unsettled:
            return False
        way.unsettled.discard(place)
        self._tasks.start(self._settle(absence.owner, request, call.path, reply), "a relayed ack")
        return True

    async def _settle(self, owner: str, request: bytes, path: str, reply: Reply) -> None:
        try:
            answer = await self._channels.to(urlsplit(owner).netloc).unary(
                path, request, metadata={FORWARDED: "1"}, timeout_seconds=FORWARD_SECONDS
            )
        except CallRefused as refused:
            reply.refuse(refused.code, refused.text)
        else:
            reply.send(answer)
