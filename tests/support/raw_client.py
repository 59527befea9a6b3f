"""A client that hides nothing: one connection, every field by hand, every status visible."""

import asyncio
from types import TracebackType
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from pydanube.wire.calls import CallRefused, Channel, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.services import Method, invoke
from pydanube.wire.grpcio.channel import GrpcioChannel
from pydanube.wire.grpcio.codes import OUR_CODES

CALL_SECONDS_MAX = 30.0
WAIT_SECONDS_MAX = 20.0
QUIET_SECONDS = 0.3
"""How long nothing may come before a test believes that nothing will."""

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
NON_RELIABLE, RELIABLE = range(2)
PRODUCER, CONSUMER = range(2)

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Stream:
    """One ReceiveMessages call, read by a task so that nothing waits for the test to look."""

    def __init__(self, channel: GrpcioChannel, consumer_id: int) -> None:
        self.consumer_id = consumer_id
        request = api.ReceiveRequest(request_id=7, consumer_id=consumer_id).SerializeToString()
        # Not through `channel.stream`, which shows neither headers nor the moment of the call.
        self._call = channel._open().unary_stream(services.RECEIVE_MESSAGES.path)(request)
        self._arrived: asyncio.Queue[api.StreamMessage | None] = asyncio.Queue()
        self._ended: asyncio.Future[StatusCode] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        outcome = StatusCode.OK
        try:
            async for reply in self._call:
                self._arrived.put_nowait(api.StreamMessage.FromString(reply))
        except grpc.aio.AioRpcError as error:
            outcome = OUR_CODES[error.code()]
        self._ended.set_result(outcome)
        self._arrived.put_nowait(None)

    async def opened(self) -> None:
        """Wait for the headers: the broker has let the stream in."""
        await asyncio.wait_for(self._call.initial_metadata(), WAIT_SECONDS_MAX)

    @property
    def is_open(self) -> bool:
        return not self._ended.done()

    async def next(self, seconds_max: float = WAIT_SECONDS_MAX) -> api.StreamMessage:
        """Wait for the next message; an ended stream fails the test."""
        message = await asyncio.wait_for(self._arrived.get(), seconds_max)
        if message is None:
            self._arrived.put_nowait(None)
            raise AssertionError(f"the stream has ended: {self._ended.result()}")
        return message

    async def take(self, count: int) -> list[api.StreamMessage]:
        return [await self.next() for _ in range(count)]

    async def offsets(self, count: int) -> list[int]:
        return [message.msg_id.topic_offset for message in await self.take(count)]

    async def payloads(self, count: int) -> list[bytes]:
        return [message.payload for message in await self.take(count)]

    async def rest(self, quiet_seconds: float = QUIET_SECONDS) -> list[api.StreamMessage]:
        """Everything that comes until nothing has come for a while."""
        found: list[api.StreamMessage] = []
        while True:
            try:
                message = await asyncio.wait_for(self._arrived.get(), quiet_seconds)
            except TimeoutError:
                return found
            if message is None:
                self._arrived.put_nowait(None)
                return found
            found.append(message)

    async def ended(self, seconds_max: float = WAIT_SECONDS_MAX) -> StatusCode:
        """Wait until the broker ends the stream; return how."""
        return await asyncio.wait_for(asyncio.shield(self._ended), seconds_max)

    async def close(self) -> None:
        """Go away, as a client that cancels the call."""
        self._call.cancel()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


class RawClient:
    """One connection to the client port and one to the admin port of a broker."""

    def __init__(self, url: str, admin_url: str | None = None) -> None:
        self.channel = GrpcioChannel(url)
        self._admin = GrpcioChannel(admin_url) if admin_url is not None else None
        self._streams: list[Stream] = []
        self._request_id = 100

    async def __aenter__(self) -> "RawClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for stream in self._streams:
            await stream.close()
        await self.channel.close()
        if self._admin is not None:
            await self._admin.close()

    async def call(self, method: Method[Request, Response], request: Request) -> Response:
        channel: Channel = self.channel
        if method.service.startswith("danube_admin."):
            assert self._admin is not None
            channel = self._admin
        return await invoke(channel, method, request, timeout_seconds=CALL_SECONDS_MAX)

    async def status(self, method: Method[Any, Any], request: Message) -> StatusCode:
        """Return how a call ends, when its answer does not matter."""
        try:
            await self.call(method, request)
        except CallRefused as refused:
            return refused.code
        return StatusCode.OK

    async def raw(self, path: str, data: bytes, *, on_admin: bool = False) -> bytes:
        channel = self._admin if on_admin else self.channel
        assert channel is not None
        return await channel.unary(path, data, timeout_seconds=CALL_SECONDS_MAX)

    def _next_request_id(self) -> int:
        self._request_id += 1
        return self._request_id

    # Producing.

    async def create_producer(
        self, topic: str, name: str = "p", *, reliable: bool = True, **fields: Any
    ) -> int:
        request = producer_request(topic, name, reliable=reliable, **fields)
        return (await self.call(services.CREATE_PRODUCER, request)).producer_id

    async def send(
        self, topic: str, producer_id: int, payload: bytes = b"x", **fields: Any
    ) -> int | None:
        """Send one message; return its offset, None on a best-effort topic."""
        request = message(topic, producer_id, payload, request_id=self._next_request_id(), **fields)
        reply = await self.call(services.SEND_MESSAGE, request)
        assert reply.request_id == request.request_id
        return reply.topic_offset if reply.HasField("topic_offset") else None

    async def send_many(self, topic: str, producer_id: int, payloads: list[bytes]) -> None:
        for payload in payloads:
            await self.send(topic, producer_id, payload)

    # Consuming.

    async def subscribe(
        self,
        topic: str,
        subscription: str = "s",
        name: str = "c",
        kind: int = EXCLUSIVE,
        **fields: Any,
    ) -> int:
        request = consumer_request(topic, subscription, name, kind, **fields)
        return (await self.call(services.SUBSCRIBE, request)).consumer_id

    def open(self, consumer_id: int) -> Stream:
        stream = Stream(self.channel, consumer_id)
        self._streams.append(stream)
        return stream

    async def consume(
        self,
        topic: str,
        subscription: str = "s",
        name: str = "c",
        kind: int = EXCLUSIVE,
        **fields: Any,
    ) -> Stream:
        """Subscribe and open the stream; return once the broker has let it in."""
        stream = self.open(await self.subscribe(topic, subscription, name, kind, **fields))
        await stream.opened()
        return stream

    async def ack(self, message: api.StreamMessage, subscription: str = "s") -> None:
        request = api.AckRequest(
            request_id=message.request_id, msg_id=message.msg_id, subscription_name=subscription
        )
        reply = await self.call(services.ACK, request)
        assert reply.request_id == request.request_id

    async def ack_all(self, messages: list[api.StreamMessage], subscription: str = "s") -> None:
        for each in messages:
            await self.ack(each, subscription)

    async def nack(
        self, message: api.StreamMessage, subscription: str = "s", **fields: Any
    ) -> None:
        request = api.NackRequest(
            request_id=message.request_id,
            msg_id=message.msg_id,
            subscription_name=subscription,
            **fields,
        )
        reply = await self.call(services.NACK, request)
        assert reply.request_id == request.request_id

    async def drop(self, stream: Stream) -> None:
        """Close a stream and wait until the broker has noticed; takes the CLOSE that is due."""
        await stream.close()
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while await self.health(CONSUMER, stream.consumer_id) != "CLOSE":
                await asyncio.sleep(0.005)

    async def health(self, client: int, client_id: int) -> str:
        request = api.HealthCheckRequest(request_id=1, id=client_id)
        request.client = client  # type: ignore[assignment]  # Tests send numbers that are none.
        reply = await self.call(services.HEALTH_CHECK, request)
        return api.HealthCheckResponse.ClientStatus.Name(reply.status)

    # Discovery and administration.

    async def lookup(self, topic: str) -> api.TopicLookupResponse:
        return await self.call(
            services.TOPIC_LOOKUP, api.TopicLookupRequest(request_id=5, topic=topic)
        )

    async def partitions(self, topic: str) -> list[str]:
        request = api.TopicLookupRequest(request_id=5, topic=topic)
        return list((await self.call(services.TOPIC_PARTITIONS, request)).partitions)

    async def create_topic(self, topic: str, *, reliable: bool = True, **fields: Any) -> None:
        await self.call(
            services.CREATE_TOPIC,
            admin.NewTopicRequest(name=topic, dispatch_strategy=_strategy(reliable), **fields),
        )

    async def create_partitioned(
        self, base: str, partitions: int, *, reliable: bool = True
    ) -> None:
        await self.call(
            services.CREATE_PARTITIONED_TOPIC,
            admin.PartitionedTopicRequest(
                base_name=base, partitions=partitions, dispatch_strategy=_strategy(reliable)
            ),
        )

    async def delete_topic(self, topic: str) -> None:
        await self.call(services.DELETE_TOPIC, admin.TopicRequest(name=topic))

    async def set_failure_policy(self, topic: str, subscription: str = "s", **fields: Any) -> None:
        await self.call(
            services.SET_SUBSCRIPTION_FAILURE_POLICY, policy_request(topic, subscription, **fields)
        )

    async def set_window(self, topic: str, window: int, subscription: str = "s") -> None:
        await self.call(
            services.SET_SUBSCRIPTION_DISPATCH_CONFIG,
            admin.SetSubscriptionDispatchConfigRequest(
                topic=topic,
                subscription=subscription,
                dispatch_config=admin.SubscriptionDispatchConfig(max_unacked_messages=window),
            ),
        )

    async def subscriptions(self, topic: str) -> list[str]:
        reply = await self.call(services.LIST_SUBSCRIPTIONS, admin.TopicRequest(name=topic))
        return list(reply.subscriptions)


def _strategy(reliable: bool) -> "admin.DispatchStrategy.ValueType":
    strategies = admin.DispatchStrategy
    return strategies.Reliable if reliable else strategies.NonReliable


def producer_request(
    topic: str, name: str = "p", *, reliable: bool = True, **fields: Any
) -> api.ProducerRequest:
    fields.setdefault("dispatch_strategy", int(reliable))
    return api.ProducerRequest(request_id=3, producer_name=name, topic_name=topic, **fields)


def consumer_request(
    topic: str, subscription: str = "s", name: str = "c", kind: int = EXCLUSIVE, **fields: Any
) -> api.ConsumerRequest:
    request = api.ConsumerRequest(
        request_id=4, topic_name=topic, consumer_name=name, subscription=subscription, **fields
    )
    request.subscription_type = kind  # type: ignore[assignment]  # Tests send numbers that are none.
    return request


def message(
    topic: str, producer_id: int, payload: bytes = b"x", *, request_id: int = 1, **fields: Any
) -> api.StreamMessage:
    fields.setdefault("producer_name", "p")
    fields.setdefault("publish_time", 1_700_000_000_000)
    return api.StreamMessage(
        request_id=request_id,
        msg_id=api.MsgID(producer_id=producer_id, topic_name=topic, broker_addr="http://b:1/"),
        payload=payload,
        **fields,
    )


def policy_request(
    topic: str, subscription: str = "s", **fields: Any
) -> admin.SetSubscriptionFailurePolicyRequest:
    policy: dict[str, Any] = {
        "max_redelivery_count": 5,
        "ack_timeout_ms": 30_000,
        "base_redelivery_delay_ms": 50,
        "max_redelivery_delay_ms": 60_000,
        "backoff_strategy": admin.SubscriptionBackoffStrategy.Fixed,
        "poison_policy": admin.SubscriptionPoisonPolicy.Block,
    }
    return admin.SetSubscriptionFailurePolicyRequest(
        topic=topic,
        subscription=subscription,
        failure_policy=admin.SubscriptionFailurePolicy(**(policy | fields)),
    )
