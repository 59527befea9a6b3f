"""A channel that asks where a topic is served, and asks again after every refusal."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

from typing_extensions import override

from pydanube.runtime.randomness import Randomness
from pydanube.wire.calls import Body, CallRefused, ExchangeChannel
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.services import invoke

LOOKUP_SECONDS = 2.0

_TOPIC_OF: dict[str, Callable[[bytes], str]] = {
    services.CREATE_PRODUCER.path: lambda data: api.ProducerRequest.FromString(data).topic_name,
    services.SUBSCRIBE.path: lambda data: api.ConsumerRequest.FromString(data).topic_name,
    services.SEND_MESSAGE.path: lambda data: api.StreamMessage.FromString(data).msg_id.topic_name,
    services.ACK.path: lambda data: api.AckRequest.FromString(data).msg_id.topic_name,
}


class FollowingChannel(ExchangeChannel):
    """Carries the calls of a client that is concerned with one topic to whoever serves it.

    Calls that name no topic go where the last one went; at the admin port, to any broker.
    """

    def __init__(
        self,
        open_channel: Callable[[str], ExchangeChannel],
        brokers: Callable[[], Sequence[str]],
        randomness: Randomness,
        *,
        looks_up: bool,
    ) -> None:
        self._open_channel = open_channel
        self._brokers = brokers
        self._randomness = randomness
        self._looks_up = looks_up
        self._channels: dict[str, ExchangeChannel] = {}
        self._topic = ""
        self._place: str | None = None

    @property
    def place(self) -> str:
        """The broker that calls go to now; empty while that is not known."""
        return self._place or ""

    def _at(self, name: str) -> ExchangeChannel:
        if name not in self._channels:
            self._channels[name] = self._open_channel(name)
        return self._channels[name]

    async def _found(self, path: str, request: bytes) -> ExchangeChannel:
        if path in _TOPIC_OF:
            self._topic = _TOPIC_OF[path](request)
        if self._place is None:
            names = self._brokers()
            asked = names[self._randomness.below(len(names))]
            self._place = await self._look_up(asked) if self._looks_up else asked
        return self._at(self._place)

    async def _look_up(self, asked: str) -> str:
        request = api.TopicLookupRequest(request_id=1, topic=self._topic)
        reply = await invoke(
            self._at(asked), services.TOPIC_LOOKUP, request, timeout_seconds=LOOKUP_SECONDS
        )
        return urlsplit(reply.broker_url).hostname or asked

    @override
    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        try:
            channel = await self._found(path, request)
            return await channel.unary(
                path, request, metadata=metadata, timeout_seconds=timeout_seconds
            )
        except CallRefused:
            self._place = None
            raise

    @override
    async def stream(
        self, path: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        try:
            channel = await self._found(path, request)
            replies: Any = channel.stream(path, request, metadata=metadata)
            async with aclosing(replies):
                async for reply in replies:
                    yield reply
        except CallRefused:
            self._place = None
            raise

    @override
    def exchange(
        self,
        path: str,
        requests: AsyncIterator[Body],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[bytes]:
        raise AssertionError("clients of a simulated cluster make no exchanges")

    @override
    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
