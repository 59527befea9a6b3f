"""A topic that may be another broker's by now: nothing is done that only its owner may do."""

from typing import Any, Literal

import pytest

from pydanube.broker.addresses import AdvertisedUrls
from pydanube.broker.servicers.discovery import DiscoveryServicer
from pydanube.errors import DanubeError, Unavailable
from pydanube.model.sequences import Applied
from pydanube.topics.topic import Topic
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.support.journals import instant_disk
from tests.support.served_topic import NAME, batch_from, message, served

HERE = AdvertisedUrls("http://here:6650", "http://here:6650")


class Place:
    """What a broker believes of its place in the cluster."""

    def __init__(self) -> None:
        self.doubt: DanubeError | Literal["wait"] | None = None

    def guard(self) -> DanubeError | Literal["wait"] | None:
        return self.doubt

    def lose(self) -> None:
        self.doubt = Unavailable("cut off from the cluster")


async def test_a_best_effort_topic_in_doubt_accepts_nothing() -> None:
    place = Place()
    async with served(instant_disk(), reliable=False, guard=place.guard) as topic:
        outbox = topic.subscribe().stream.consumer.outbox
        assert await topic.send(message()).over is None
        assert await topic.publish_batch(batch_from(b"a", b"b")) == Applied(None)
        assert outbox.message_count == 3
        place.lose()
        for refused in (topic.send(message()), topic.put(batch_from(b"c"))):
            with pytest.raises(Unavailable, match="cut off"):
                await refused.over
        assert outbox.message_count == 3


async def test_what_gathered_before_the_doubt_is_not_accepted_after_it() -> None:
    place = Place()
    async with served(instant_disk(), reliable=False, guard=place.guard) as topic:
        answer = topic.send(message())
        place.doubt = "wait"
        with pytest.raises(Unavailable, match="may own"):
            await answer.over


class _Topics:
    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def find(self, name: str) -> Topic | None:
        return self._topic if name == self._topic.name else None


async def test_a_topic_in_doubt_is_not_said_to_be_here() -> None:
    place = Place()
    nobody: Any = None
    async with served(instant_disk(), guard=place.guard) as topic:
        topics: Any = _Topics(topic.topic)
        discovery = DiscoveryServicer(topics, nobody, HERE, nobody)
        request = api.TopicLookupRequest(request_id=1, topic=NAME)
        reply = await discovery.topic_lookup(request, nobody)
        assert reply.response_type == api.TopicLookupResponse.Connect
        place.lose()
        with pytest.raises(Unavailable, match="cut off"):
            await discovery.topic_lookup(request, nobody)
        place.doubt = None
        topic.topic.drain()
        with pytest.raises(Unavailable, match="is closing"):
            await discovery.topic_lookup(request, nobody)
