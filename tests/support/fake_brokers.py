"""Brokers in memory that answer the Danube API, and misbehave on request. For client tests."""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from pydanube.client.client import Client, connect
from pydanube.client.retry import RetryPolicy
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.wire.calls import Body, CallRefused, ExchangeChannel, StatusCode
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from pydanube.wire.danube.services import METHODS
from pydanube.wire.flight.service import DO_PUT
from tests.support.fake_puts import FakePuts

URL = "http://broker-1:6650"
OTHER_URL = "http://broker-2:6650"


@dataclass
class FakeTopic:
    reliable: bool
    messages: list[api.StreamMessage] = field(default_factory=list)

    def stored_of(self, message: api.StreamMessage) -> list[api.StreamMessage]:
        """What the same session has stored, in its order."""
        session = (message.producer_name, message.producer_session)
        return [
            each
            for each in self.messages
            if (each.producer_name, each.producer_session) == session
            and each.HasField("producer_sequence")
        ]

    def offset_of(self, message: api.StreamMessage) -> int | None:
        """Where the message lies; None if the number was left out."""
        for each in self.stored_of(message):
            if each.producer_sequence == message.producer_sequence:
                return each.msg_id.topic_offset
        return None


@dataclass
class FakeSubscription:
    acked: set[int] = field(default_factory=set)
    nacked: list[int] = field(default_factory=list)


@dataclass
class FakeConsumer:
    topic: str
    subscription: str
    inbox: asyncio.Queue[api.StreamMessage | CallRefused | None]
    """A refusal breaks the stream; None ends it cleanly."""
    request: api.ConsumerRequest
    closing: bool = False


class FakeBroker:
    """Serves what it owns. `refusals` answers the next calls of a method; `down` answers none."""

    def __init__(self, cluster: "FakeBrokers", url: str) -> None:
        self.url = url
        self.down = False
        self.refusals: dict[str, deque[CallRefused]] = defaultdict(deque)
        self.calls: list[tuple[str, Any]] = []
        self.metadata: dict[str, Mapping[str, str] | None] = {}
        self.consumers: dict[int, FakeConsumer] = {}
        self.producers: set[int] = set()
        self.crashes = 0
        self.delay_seconds: Callable[[], float] | None = None
        """How long a request, and then its reply, is on its way."""
        self._cluster = cluster
        self._gates: dict[str, asyncio.Event] = {}

    def refuse(self, method: str, *codes: StatusCode) -> None:
        self.refusals[method].extend(CallRefused(code, f"scripted {code.name}") for code in codes)

    def hold(self, method: str) -> asyncio.Event:
        """Keep calls of a method waiting until the event is set."""
        self._gates[method] = asyncio.Event()
        return self._gates[method]

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.calls)

    def crash(self, *, forget: bool = False) -> None:
        """Go down, and break every stream; with `forget`, lose the ids too."""
        self.down = True
        self.crashes += 1
        for consumer in self.consumers.values():
            consumer.inbox.put_nowait(CallRefused(StatusCode.UNAVAILABLE, "connection lost"))
        if forget:
            self.consumers.clear()
            self.producers.clear()

    async def answer(self, path: str, data: bytes, metadata: Mapping[str, str] | None) -> bytes:
        method = METHODS[path]
        self._check_up()
        request = method.request.FromString(data)
        self.calls.append((method.name, request))
        self.metadata[method.name] = metadata
        if method.name in self._gates:
            await self._gates[method.name].wait()
            self._check_up()
        if self.refusals[method.name]:
            raise self.refusals[method.name].popleft()
        crashes = self.crashes
        await self._travel(crashes)
        reply = getattr(self, f"_{method.name}")(request).SerializeToString()
        await self._travel(crashes)
        return reply

    async def deliver(self, path: str, data: bytes) -> AsyncGenerator[bytes, None]:
        self._check_up()
        if path not in METHODS:
            raise CallRefused(StatusCode.UNIMPLEMENTED, f"{path} is not served here")
        request = METHODS[path].request.FromString(data)
        self.calls.append(("ReceiveMessages", request))
        if self.refusals["ReceiveMessages"]:
            raise self.refusals["ReceiveMessages"].popleft()
        consumer = self.consumers.get(request.consumer_id)
        if consumer is None:
            raise CallRefused(StatusCode.NOT_FOUND, "no such consumer")
        while (item := await consumer.inbox.get()) is not None:
            if isinstance(item, CallRefused):
                raise item
            yield item.SerializeToString()

    async def _travel(self, crashes: int) -> None:
        """Take the time of one way; what is on its way when the broker crashes never arrives."""
        if self.delay_seconds is not None:
            await asyncio.sleep(self.delay_seconds())
        if self.crashes != crashes:
            raise CallRefused(StatusCode.UNAVAILABLE, "connection lost")

    def _check_up(self) -> None:
        if self.down:
            raise CallRefused(StatusCode.UNAVAILABLE, "connection refused")

    def _owned(self, topic: str) -> FakeTopic:
        if topic not in self._cluster.topics:
            raise CallRefused(StatusCode.NOT_FOUND, f"topic {topic} not found")
        if self._cluster.owner_of(topic) != self.url:
            raise CallRefused(StatusCode.UNAVAILABLE, f"topic {topic} is served elsewhere")
        return self._cluster.topics[topic]

    def _TopicLookup(self, request: api.TopicLookupRequest) -> api.TopicLookupResponse:
        if request.topic not in self._cluster.topics:
            raise CallRefused(StatusCode.NOT_FOUND, f"topic {request.topic} not found")
        owner = self._cluster.owner_of(request.topic)
        return api.TopicLookupResponse(
            response_type="Connect" if owner == self.url else "Redirect",
            connect_url=self._cluster.proxy_url or owner,
            broker_url=owner,
            proxy=self._cluster.proxy_url is not None,
        )

    def _TopicPartitions(self, request: api.TopicLookupRequest) -> api.TopicPartitionsResponse:
        if request.topic in self._cluster.topics:
            return api.TopicPartitionsResponse(partitions=[request.topic])
        parts = [t for t in self._cluster.topics if t.startswith(f"{request.topic}-part-")]
        return api.TopicPartitionsResponse(partitions=parts)

    def _CreateProducer(self, request: api.ProducerRequest) -> api.ProducerResponse:
        if request.topic_name not in self._cluster.topics:
            self._cluster.add_topic(request.topic_name, reliable=request.dispatch_strategy == 1)
        topic = self._owned(request.topic_name)
        if topic.reliable != (request.dispatch_strategy == 1):
            raise CallRefused(StatusCode.FAILED_PRECONDITION, "dispatch strategy differs")
        producer_id = self._cluster.stable_id("producer", request.topic_name, request.producer_name)
        self.producers.add(producer_id)
        return api.ProducerResponse(producer_id=producer_id)

    def _SendMessage(self, message: api.StreamMessage) -> api.MessageResponse:
        if message.msg_id.producer_id not in self.producers:
            raise CallRefused(StatusCode.NOT_FOUND, "no such producer")
        topic = self._owned(message.msg_id.topic_name)
        if self._is_repeated(topic, message):
            return api.MessageResponse(
                request_id=message.request_id, topic_offset=topic.offset_of(message)
            )
        message.msg_id.topic_offset = len(topic.messages)
        topic.messages.append(message)
        for broker in self._cluster.brokers.values():
            for consumer in broker.consumers.values():
                if consumer.topic == message.msg_id.topic_name:
                    consumer.inbox.put_nowait(message)
        return api.MessageResponse(
            request_id=message.request_id, topic_offset=message.msg_id.topic_offset
        )

    def _is_repeated(self, topic: FakeTopic, message: api.StreamMessage) -> bool:
        if not message.HasField("producer_sequence"):
            return False
        stored = topic.stored_of(message)
        if stored and message.producer_sequence <= stored[-1].producer_sequence:
            return True
        if message.HasField("previous_sequence"):
            if not stored:
                raise CallRefused(StatusCode.OUT_OF_RANGE, "no such session")
            if stored[-1].producer_sequence < message.previous_sequence:
                raise CallRefused(StatusCode.RESOURCE_EXHAUSTED, "the one before it is missing")
        return False

    def _CloseProducer(self, request: own.CloseProducerRequest) -> own.CloseProducerResponse:
        self.producers.discard(request.producer_id)
        return own.CloseProducerResponse()

    def _CloseConsumer(self, request: own.CloseConsumerRequest) -> own.CloseConsumerResponse:
        if not request.keeps_name:
            self.consumers.pop(request.consumer_id, None)
        return own.CloseConsumerResponse()

    def _Subscribe(self, request: api.ConsumerRequest) -> api.ConsumerResponse:
        topic = self._owned(request.topic_name)
        names = (request.topic_name, request.subscription, request.consumer_name)
        consumer_id = self._cluster.stable_id("consumer", *names)
        earlier = self.consumers.get(consumer_id)
        if earlier is not None:
            earlier.inbox.put_nowait(None)
        key = (request.topic_name, request.subscription)
        is_new = key not in self._cluster.subscriptions
        subscription = self._cluster.subscriptions[key]
        if is_new and request.start_position != "earliest":
            subscription.acked.update(range(len(topic.messages)))
        inbox: asyncio.Queue[api.StreamMessage | CallRefused | None] = asyncio.Queue()
        for offset, message in enumerate(topic.messages):
            if offset not in subscription.acked:
                inbox.put_nowait(message)
        self.consumers[consumer_id] = FakeConsumer(*key, inbox, request)
        return api.ConsumerResponse(consumer_id=consumer_id)

    def _Ack(self, request: api.AckRequest) -> api.AckResponse:
        self._owned(request.msg_id.topic_name)
        key = (request.msg_id.topic_name, request.subscription_name)
        self._cluster.subscriptions[key].acked.add(request.msg_id.topic_offset)
        return api.AckResponse()

    def _Nack(self, request: api.NackRequest) -> api.NackResponse:
        key = (request.msg_id.topic_name, request.subscription_name)
        self._cluster.subscriptions[key].nacked.append(request.msg_id.topic_offset)
        return api.NackResponse()

    def _HealthCheck(self, request: api.HealthCheckRequest) -> api.HealthCheckResponse:
        consumer = self.consumers.get(request.id)
        live = consumer is not None and not consumer.closing
        return api.HealthCheckResponse(status="OK" if live else "CLOSE")


class FakeBrokers:
    """A cluster: topics have one owner each, and whatever was stored survives every crash."""

    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.subscriptions: dict[tuple[str, str], FakeSubscription] = defaultdict(FakeSubscription)
        self.owners: dict[str, str] = {}
        self.proxy_url: str | None = None
        self.opened: list[str] = []
        self.open_channels = 0
        self.open_streams = 0
        self.puts: FakePuts | None = None
        """Who takes batches; None: nobody, as at brokers of another make."""
        self.brokers = {url: FakeBroker(self, url) for url in (URL, OTHER_URL)}
        self._ids: dict[tuple[str, ...], int] = {}

    @property
    def first(self) -> FakeBroker:
        return self.brokers[URL]

    @property
    def second(self) -> FakeBroker:
        return self.brokers[OTHER_URL]

    def add_topic(self, name: str, *, reliable: bool = True, owner: str = URL) -> FakeTopic:
        self.owners[name] = owner
        self.topics[name] = FakeTopic(reliable)
        return self.topics[name]

    def owner_of(self, topic: str) -> str:
        return self.owners[topic]

    def payloads(self, topic: str) -> list[bytes]:
        return [message.payload for message in self.topics[topic].messages]

    def stable_id(self, *names: str) -> int:
        return self._ids.setdefault(names, len(self._ids) + 1)

    def open_channel(self, url: str) -> "FakeChannel":
        self.opened.append(url)
        self.open_channels += 1
        return FakeChannel(self, self.brokers[URL if url == self.proxy_url else url])


class FakeChannel(ExchangeChannel):
    def __init__(self, cluster: FakeBrokers, broker: FakeBroker) -> None:
        self._cluster = cluster
        self._broker = broker
        self._closed = False

    @override
    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        self._check_open()
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._broker.answer(path, request, metadata)
        except TimeoutError:
            raise CallRefused(StatusCode.DEADLINE_EXCEEDED, "deadline exceeded") from None

    @override
    async def stream(
        self, path: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        self._check_open()
        self._cluster.open_streams += 1
        try:
            async for reply in self._broker.deliver(path, request):
                yield reply
        finally:
            self._cluster.open_streams -= 1

    @override
    async def exchange(
        self,
        path: str,
        requests: AsyncIterator[Body],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        self._check_open()
        puts = self._cluster.puts
        if puts is None or path != DO_PUT:
            raise CallRefused(StatusCode.UNIMPLEMENTED, f"no such method: {path}")
        async with aclosing(puts.exchange(requests)) as replies:
            async for reply in replies:
                yield reply

    @override
    async def close(self) -> None:
        self._check_open()
        self._closed = True
        self._cluster.open_channels -= 1

    def _check_open(self) -> None:
        if self._closed:
            raise CallRefused(StatusCode.CANCELLED, "the channel was closed")


def with_client(
    test: Callable[[Client, FakeBrokers], Coroutine[Any, Any, None]],
    *,
    url: str = URL,
    retry: RetryPolicy | None = None,
    seed: int = 1,
) -> None:
    """Run a test in virtual time; afterwards nothing of the client may be left."""

    async def run(randomness: Randomness) -> None:
        cluster = FakeBrokers()
        async with connect(
            url,
            retry=retry,
            clock=SimulatedClock(),
            randomness=randomness,
            open_channel=cluster.open_channel,
        ) as client:
            await test(client, cluster)
        assert cluster.open_channels == 0, "a channel was left open"
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks were left running: {left}"

    run_simulated(run, seed)
