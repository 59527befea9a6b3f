"""The Danube API as typed calls: our own types in and out, and errors by their kind."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from itertools import count
from typing import TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage
from msgspec import Struct

from pydanube.client.codecs import Codec, Value
from pydanube.client.errors import ClientClosed, SessionUnknown
from pydanube.client.message import MessageId, Receipt, ReceivedMessage
from pydanube.client.schema_calls import SchemaCalls
from pydanube.client.subscription_calls import PolicyCalls
from pydanube.errors import DanubeError, Unavailable
from pydanube.model.message import Message
from pydanube.model.policies import DispatchStrategy, SubscriptionType
from pydanube.model.schemas import SchemaReference
from pydanube.model.sequences import MessageSequence
from pydanube.wire.calls import Body, CallRefused, ExchangeChannel, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from pydanube.wire.danube.status import error_of

Request = TypeVar("Request", bound=ProtoMessage)
Response = TypeVar("Response", bound=ProtoMessage)

CALL_SECONDS_MAX = 30.0
LEAVE_SECONDS_MAX = 1.0
"""Whoever leaves does not wait for long: the broker notices by itself, if later."""
PROXY_HEADER = "x-danube-broker-url"


class BrokerAddress(Struct, frozen=True):
    """How to reach a broker: directly, or through a proxy that asks for its `broker_url`."""

    broker_url: str
    connect_url: str
    proxy: bool = False


class Subscription(Struct, frozen=True, kw_only=True):
    """What a consumer asks for when it subscribes."""

    name: str
    consumer_name: str
    type: SubscriptionType
    key_filters: Sequence[str] = ()
    start_position: str | None = None
    """earliest, latest, offset:<n> or time:<ms>; counts only when the subscription is new."""
    is_temporary: bool = False
    """Nobody will come back under the consumer's name: it was made up."""


_TROUBLE = (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED)


class Connection:
    """Calls to one broker. Errors are DanubeErrors; `retryable` tells whether repeating can help.

    Every call but `send` and `receive` ends within CALL_SECONDS_MAX.
    """

    def __init__(self, channel: ExchangeChannel, address: BrokerAddress) -> None:
        self.address = address
        self._channel = channel
        self._metadata: Mapping[str, str] | None = (
            {PROXY_HEADER: address.broker_url} if address.proxy else None
        )
        self._request_ids = count(1)
        self.is_troubled = False
        """It did not answer when it was last asked: others are asked before it."""
        self.is_closed = False
        """Its client was closed: what ends now ends for that reason."""

    @property
    def schemas(self) -> SchemaCalls:
        """The calls of the schema registry."""
        return SchemaCalls(self._call)

    @property
    def policies(self) -> PolicyCalls:
        """The calls that change failure policies."""
        return PolicyCalls(self._call)

    async def look_up(self, topic: str) -> BrokerAddress:
        """Return the address of the broker that serves a topic."""
        request = api.TopicLookupRequest(request_id=next(self._request_ids), topic=topic)
        reply = await self._call(services.TOPIC_LOOKUP, request, routed=False)
        if reply.response_type == api.TopicLookupResponse.Failed or not reply.connect_url:
            raise Unavailable(
                f"{self.address.connect_url} does not know which broker serves {topic}"
            )
        return BrokerAddress(reply.broker_url, reply.connect_url, reply.proxy)

    async def partitions(self, topic: str) -> list[str]:
        """Return the topic itself, or its partitions, or nothing if there is no such topic."""
        request = api.TopicLookupRequest(request_id=next(self._request_ids), topic=topic)
        reply = await self._call(services.TOPIC_PARTITIONS, request, routed=False)
        return list(reply.partitions)

    async def create_producer(
        self,
        topic: str,
        name: str,
        dispatch: DispatchStrategy,
        schema: SchemaReference | None = None,
    ) -> int:
        """Attach a producer to a topic, creating the topic where allowed; return its id."""
        request = api.ProducerRequest(
            request_id=next(self._request_ids),
            producer_name=name,
            topic_name=topic,
            schema_ref=_schema_reference(schema) if schema is not None else None,
            dispatch_strategy=api.DispatchStrategy.Value(dispatch),
        )
        return (await self._call(services.CREATE_PRODUCER, request)).producer_id

    async def send(
        self, topic: str, producer_id: int, message: Message, number: MessageSequence | None
    ) -> tuple[int, int | None]:
        """Publish; return (request id, offset) once the broker has acknowledged.

        It waits as long as the broker takes: a deadline here would turn a slow acknowledgement
        into a repeated message.
        """
        request = api.StreamMessage(
            request_id=next(self._request_ids),
            msg_id=api.MsgID(
                producer_id=producer_id, topic_name=topic, broker_addr=self.address.broker_url
            ),
            payload=message.payload,
            publish_time=message.publish_time_ms,
            producer_name=message.producer_name,
            attributes=message.attributes,
            routing_key=message.routing_key,
            schema_id=message.schema_id,
            schema_version=message.schema_version,
            producer_sequence=number.sequence if number is not None else None,
            previous_sequence=number.previous if number is not None else None,
            producer_session=number.session if number is not None else None,
        )
        reply = await self._call(services.SEND_MESSAGE, request, seconds_max=None)
        offset = reply.topic_offset if reply.HasField("topic_offset") else None
        return request.request_id, offset

    async def subscribe(self, topic: str, subscription: Subscription) -> int:
        """Attach a consumer to a subscription, taking over from its own name; return its id."""
        request = api.ConsumerRequest(
            request_id=next(self._request_ids),
            topic_name=topic,
            consumer_name=subscription.consumer_name,
            subscription=subscription.name,
            subscription_type=api.ConsumerRequest.SubscriptionType.Value(subscription.type),
            key_filters=subscription.key_filters,
            start_position=subscription.start_position,
        )
        return (await self._call(services.SUBSCRIBE, request)).consumer_id

    async def receive(
        self, consumer_id: int, codec: Codec[Value]
    ) -> AsyncGenerator[ReceivedMessage[Value], None]:
        """Iterate over a consumer's messages; ends when the broker ends the stream."""
        request = api.ReceiveRequest(request_id=next(self._request_ids), consumer_id=consumer_id)
        replies = self._channel.stream(
            services.RECEIVE_MESSAGES.path,
            request.SerializeToString(),
            metadata={**(self._metadata or {}), services.TELL_DISPLACED: "1"},
        )
        try:
            async for reply in replies:
                yield _received(api.StreamMessage.FromString(reply), codec)
        except CallRefused as refusal:
            raise self.error(refusal) from refusal
        except DecodeError as error:
            url = self.address.connect_url
            raise DanubeError(f"{url} sent bytes that are not a message") from error
        finally:
            if isinstance(replies, AsyncGenerator):
                await replies.aclose()  # The broker learns at once that nobody listens.

    async def ack(self, message: Receipt, subscription: str) -> None:
        """Tell the broker that a message is done."""
        request = api.AckRequest(
            request_id=message.request_id,
            msg_id=_message_id(message.message_id),
            subscription_name=subscription,
        )
        await self._call(services.ACK, request)

    async def nack(
        self,
        message: Receipt,
        subscription: str,
        *,
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Give a message back, to be delivered again, at the earliest after `delay_ms`."""
        request = api.NackRequest(
            request_id=message.request_id,
            msg_id=_message_id(message.message_id),
            subscription_name=subscription,
            delay_ms=delay_ms,
            reason=reason,
        )
        await self._call(services.NACK, request)

    async def seek(self, topic: str, subscription: str, position: str) -> None:
        """Move a subscription of a topic; returns once that is durable."""
        request = own.SeekRequest(topic=topic, subscription=subscription, position=position)
        await self._call(services.SEEK, request)

    async def unsubscribe(self, topic: str, subscription: str, consumer_id: int) -> None:
        """Delete a subscription together with its last consumer."""
        request = own.UnsubscribeRequest(
            topic=topic, subscription=subscription, consumer_id=consumer_id
        )
        await self._call(services.LEAVE_SUBSCRIPTION, request)

    async def close_producer(self, producer_id: int) -> None:
        """Let a producer go."""
        request = own.CloseProducerRequest(producer_id=producer_id)
        await self._call(services.CLOSE_PRODUCER, request, seconds_max=LEAVE_SECONDS_MAX)

    async def close_consumer(self, consumer_id: int, *, keeps_name: bool) -> None:
        """Let a consumer go; one that keeps its name may come back under it."""
        request = own.CloseConsumerRequest(consumer_id=consumer_id, keeps_name=keeps_name)
        await self._call(services.CLOSE_CONSUMER, request, seconds_max=LEAVE_SECONDS_MAX)

    async def consumer_is_live(self, consumer_id: int) -> bool:
        """Ask whether the broker still keeps a consumer; if not, it has to subscribe again."""
        request = api.HealthCheckRequest(
            request_id=next(self._request_ids),
            client=api.HealthCheckRequest.Consumer,
            id=consumer_id,
        )
        reply = await self._call(services.HEALTH_CHECK, request)
        return reply.status == api.HealthCheckResponse.OK

    async def _call(
        self,
        method: services.Method[Request, Response],
        request: Request,
        *,
        seconds_max: float | None = CALL_SECONDS_MAX,
        routed: bool = True,
    ) -> Response:
        # A proxy routes by header; discovery is answered by whichever broker it reaches.
        metadata = self._metadata if routed else None
        try:
            reply = await services.invoke(
                self._channel, method, request, metadata=metadata, timeout_seconds=seconds_max
            )
        except CallRefused as refusal:
            raise self.error(refusal, method.path) from refusal
        self.is_troubled = False
        return reply

    def open_flight(self, path: str, request: bytes | AsyncIterator[Body]) -> AsyncIterator[bytes]:
        """Make a call of the batch API, with one request or a stream of them."""
        if isinstance(request, bytes):
            return self._channel.stream(path, request, metadata=self._metadata)
        return self._channel.exchange(path, request, metadata=self._metadata)

    def error(self, refusal: CallRefused, method: str = "") -> DanubeError:
        """Return what a caller of this broker meets when a call was refused."""
        if self.is_closed and refusal.code is StatusCode.CANCELLED:
            return closed(self.address.connect_url)
        if refusal.code is StatusCode.OUT_OF_RANGE and method == services.SEND_MESSAGE.path:
            return SessionUnknown(refusal.text)
        self.is_troubled = refusal.code in _TROUBLE
        if refusal.code is StatusCode.UNAVAILABLE:
            return Unavailable(
                f"cannot use the broker at {self.address.connect_url} now: {refusal.text}"
            )
        return error_of(refusal)


def closed(url: str) -> ClientClosed:
    """Return what a caller meets whose call to `url` was cut off by the end of its client."""
    return ClientClosed(
        f"the client was closed before {url} answered; what was asked may or may not be done: "
        "await it before you close the client, and open another client to go on"
    )


def _schema_reference(reference: SchemaReference) -> api.SchemaReference:
    if reference.version is not None:
        return api.SchemaReference(subject=reference.subject, pinned_version=reference.version)
    if reference.min_version is not None:
        return api.SchemaReference(subject=reference.subject, min_version=reference.min_version)
    return api.SchemaReference(subject=reference.subject, use_latest=True)


def _message_id(message_id: MessageId) -> api.MsgID:
    return api.MsgID(
        producer_id=message_id.producer_id,
        topic_name=message_id.topic,
        broker_addr=message_id.broker_url,
        topic_offset=message_id.offset,
    )


def _received(message: api.StreamMessage, codec: Codec[Value]) -> ReceivedMessage[Value]:
    place = message.msg_id
    return ReceivedMessage(
        message_id=MessageId(
            place.producer_id, place.topic_name, place.broker_addr, place.topic_offset
        ),
        request_id=message.request_id,
        payload=message.payload,
        publish_time_ms=message.publish_time,
        producer_name=message.producer_name,
        routing_key=message.routing_key if message.HasField("routing_key") else None,
        attributes=dict(message.attributes),
        schema_id=message.schema_id if message.HasField("schema_id") else None,
        schema_version=message.schema_version if message.HasField("schema_version") else None,
        codec=codec,
    )
