"""ConsumerService: subscribing, receiving, acknowledging."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from typing import Protocol

from typing_extensions import override

from pydanube.broker.servicers.pieces import read_pieces
from pydanube.errors import DanubeError, InvalidRequest, WrongBroker
from pydanube.model.ids import ConsumerId, Offset, stable_producer_id
from pydanube.model.policies import SubscriptionType
from pydanube.observability.logging import get_logger
from pydanube.observability.metrics import BrokerMetrics
from pydanube.runtime.clock import Clock
from pydanube.storage.topic_log import Piece
from pydanube.subscriptions.consumer import ConsumerStream, StreamEnded
from pydanube.subscriptions.long_messages import RECEIVED_BYTES_MAX
from pydanube.subscriptions.outbox import Delivery
from pydanube.topics.registration import RegisteredConsumer, Registration
from pydanube.topics.topic import Topic
from pydanube.wire.calls import (
    Body,
    Call,
    CallRefused,
    HandlerTable,
    HearsOfResets,
    Reply,
    body_bytes,
)
from pydanube.wire.danube import services
from pydanube.wire.danube.convert import delivered_place, delivery_suffix, encode_message
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.marks import mark_of, marked_address
from pydanube.wire.danube.status import refusal
from pydanube.wire.flight.status import refusals

REFUSAL_PAUSE_SECONDS = 1.0
"""Some clients open a refused stream again at once and for ever; this keeps them slow."""
HELD_POLL_SECONDS = 1.0
_GROUP_MESSAGES_MAX = 256
_GROUP_BYTES_MAX = 512 * 1024
_REASON_CHARACTERS_MAX = 1024
"""A reason ends up in the dead letter, which clients must still be able to read."""

_log = get_logger(__name__)

_KINDS: dict[int, SubscriptionType] = {0: "Exclusive", 1: "Shared", 2: "Failover", 3: "KeyShared"}


class Relay(Protocol):
    """The way to consumers whose topics other brokers serve."""

    def messages(
        self, consumer: ConsumerId, request: bytes, call: Call
    ) -> AsyncIterator[Sequence[Body]] | None:
        """Return what the consumer's broker sends it; None if there is no such consumer elsewhere.

        Refuses while its topic changes hands.
        """

    def settle(self, absence: WrongBroker, request: bytes, call: Call, reply: Reply) -> bool:
        """Have an ack or nack answered where its topic is; False if that is not known."""


class ConsumerServicer:
    """Translates, delegates, translates back."""

    def __init__(
        self,
        registration: Registration,
        clock: Clock,
        broker_url: str,
        metrics: BrokerMetrics,
        relay: Relay | None = None,
    ) -> None:
        self._registration = registration
        self._clock = clock
        self._broker_url = broker_url
        self._metrics = metrics
        self._relay = relay

    def register(self, table: HandlerTable) -> None:
        """Serve the methods of ConsumerService."""
        services.serve(table, services.SUBSCRIBE, self.subscribe)
        receive = services.RECEIVE_MESSAGES
        table.add_stream(receive.path, services.stream(receive, self.receive_messages))
        table.add_direct(services.ACK.path, self.ack)
        table.add_direct(services.NACK.path, self.nack)

    async def subscribe(self, request: api.ConsumerRequest, call: Call) -> api.ConsumerResponse:
        """Let a consumer in; from now on its messages are kept for its stream."""
        kind = _KINDS.get(request.subscription_type)
        if kind is None:
            raise InvalidRequest(
                f"subscription_type {request.subscription_type} is none of Exclusive (0), "
                "Shared (1), Failover (2), KeyShared (3)"
            )
        start = request.start_position if request.HasField("start_position") else None
        consumer = await self._registration.subscribe(
            request.topic_name,
            request.subscription,
            request.consumer_name,
            kind,
            tuple(request.key_filters),
            call.peer,
            start,
        )
        return api.ConsumerResponse(
            request_id=request.request_id, consumer_id=consumer.id, consumer_name=consumer.name
        )

    async def receive_messages(
        self, request: api.ReceiveRequest, call: Call
    ) -> AsyncIterator[Sequence[Body]]:
        """Open the consumer's stream; an earlier one of the same consumer ends cleanly.

        Clients that can be told hear that another connection has their name, instead of waiting.
        """
        try:
            try:
                registered = await self._until_its_turn(request.consumer_id, call)
            except DanubeError:
                relayed = self._relayed(request, call)
                if relayed is None:
                    raise
                return relayed
        except DanubeError:
            await self._clock.sleep(REFUSAL_PAUSE_SECONDS)
            raise
        stream = registered.subscription.open_stream(registered.consumer, call.peer)
        return _Messages(registered, stream, self._messages(registered, stream, call))

    def _relayed(
        self, request: api.ReceiveRequest, call: Call
    ) -> AsyncIterator[Sequence[Body]] | None:
        if self._relay is None:
            return None
        consumer = ConsumerId(request.consumer_id)
        return self._relay.messages(consumer, request.SerializeToString(), call)

    async def _until_its_turn(self, consumer_id: int, call: Call) -> RegisteredConsumer:
        """Wait while another connection has this consumer; to refuse would start a ping-pong."""
        peer = call.peer
        while True:
            registered = self._registration.consumer(consumer_id)
            registered.subscription.check_served()
            consumer = registered.consumer
            if not (consumer.is_superseded(peer) and consumer.active):
                return registered
            if services.TELL_DISPLACED in call.metadata:
                registered.subscription.check_holds(consumer, peer)
            await self._clock.sleep(HELD_POLL_SECONDS)

    async def _messages(
        self, registered: RegisteredConsumer, stream: ConsumerStream, call: Call
    ) -> AsyncGenerator[Sequence[Body], None]:
        topic_metrics = self._metrics.topic(registered.topic.name)
        metrics = topic_metrics.subscription(registered.subscription.name)
        try:
            while True:
                deliveries = await stream.next(_GROUP_MESSAGES_MAX, _GROUP_BYTES_MAX)
                async for group, payload_bytes in self._groups(registered, stream, deliveries):
                    if payload_bytes > RECEIVED_BYTES_MAX // 2 and registered.topic.is_reliable:
                        stream.long_messages.begin(_long_messages(group))
                        yield group
                        stream.long_messages.sent(self._clock.monotonic_ms())
                    else:
                        yield group
                    registered.subscription.drained(stream, len(group))
                    metrics.delivered(len(group), payload_bytes)
        except StreamEnded as ended:
            if ended.error is not None:
                raise refusal(ended.error) from None
            if services.TELL_DISPLACED in call.metadata:
                with refusals():
                    registered.subscription.check_holds(registered.consumer, call.peer)
        except DanubeError as error:
            await self._clock.sleep(REFUSAL_PAUSE_SECONDS)
            raise refusal(error) from None
        finally:
            registered.subscription.close_stream(stream)

    async def _groups(
        self,
        registered: RegisteredConsumer,
        stream: ConsumerStream,
        deliveries: Sequence[Delivery],
    ) -> AsyncIterator[tuple[list[Body], int]]:
        """Encode deliveries into groups of a size that is good to send; tell their payloads'."""
        group: list[Body] = []
        size = payload_bytes = 0
        for delivery in deliveries:
            async for piece in _pieces(registered, stream, delivery):
                group += self._encode(registered, piece, delivery.attempt)
                size += piece.size_bytes
                payload_bytes += piece.payload_bytes
                if size >= _GROUP_BYTES_MAX:
                    yield group, payload_bytes
                    group, size, payload_bytes = [], 0, 0
        if group:
            yield group, payload_bytes

    def _encode(self, registered: RegisteredConsumer, piece: Piece, attempt: int) -> list[Body]:
        topic, subscription = registered.topic.name, registered.subscription
        requests = self._requests(registered.topic, piece)
        if not registered.topic.is_reliable:
            suffix = delivery_suffix(topic, None, subscription.name, attempt)
            return [(request, suffix) for request in requests]
        address = marked_address(self._broker_url, subscription.mark)
        first, name = piece.start, subscription.name
        return [
            (request, delivery_suffix(topic, first + row, name, attempt, address))
            for row, request in enumerate(requests)
        ]

    def _requests(self, topic: Topic, piece: Piece) -> Sequence[bytes]:
        if piece.batch.wire is not None:
            return piece.batch.wire[piece.first_row : piece.end_row]
        return [
            encode_message(
                message,
                stable_producer_id(topic.name, message.producer_name),
                topic.name,
                self._broker_url,
            )
            for message in piece.batch.messages(piece.first_row, piece.end_row)
        ]

    def ack(self, data: bytes, call: Call, reply: Reply) -> None:
        """Settle a message; the reply follows once that is durable."""
        try:
            request = services.decode(api.AckRequest, data)
            start = _offset(request)
            _, subscription = self._registration.addressed(
                request.msg_id.topic_name, request.subscription_name
            )
        except (CallRefused, DanubeError) as error:
            self._settle_elsewhere(error, data, call, reply)
            return
        done = partial(_answer, reply, api.AckResponse(request_id=request.request_id))
        if not subscription.may_settle(mark_of(request.msg_id.broker_addr), start, call.peer):
            subscription.ignore(done)
            return
        subscription.ack(start, Offset(start + 1), done)

    def nack(self, data: bytes, call: Call, reply: Reply) -> None:
        """Have a message delivered again; the reply follows once it is counted durably."""
        try:
            request = services.decode(api.NackRequest, data)
            start = _offset(request)
            _, subscription = self._registration.addressed(
                request.msg_id.topic_name, request.subscription_name
            )
        except (CallRefused, DanubeError) as error:
            self._settle_elsewhere(error, data, call, reply)
            return
        done = partial(_answer, reply, api.NackResponse(request_id=request.request_id))
        if not subscription.may_settle(mark_of(request.msg_id.broker_addr), start, call.peer):
            subscription.ignore(done)
            return
        reason = request.reason[:_REASON_CHARACTERS_MAX] if request.HasField("reason") else None
        subscription.nack(start, Offset(start + 1), request.delay_ms, reason, done)

    def _settle_elsewhere(
        self, error: CallRefused | DanubeError, data: bytes, call: Call, reply: Reply
    ) -> None:
        relayed = (
            self._relay is not None
            and isinstance(error, WrongBroker)
            and self._relay.settle(error, data, call, reply)
        )
        if not relayed:
            _refuse(reply, error)


class _Messages(AsyncIterator[Sequence[Body]], HearsOfResets):
    """What a consumer's stream sends, until it is closed."""

    def __init__(
        self,
        registered: RegisteredConsumer,
        stream: ConsumerStream,
        groups: AsyncGenerator[Sequence[Body], None],
    ) -> None:
        self._registered = registered
        self._stream = stream
        self._groups = groups

    @override
    async def __anext__(self) -> Sequence[Body]:
        return await anext(self._groups)

    @override
    def caller_reset(self) -> None:
        refused = self._registered.subscription.refused(self._stream)
        if refused is not None:
            _log.warning(
                "a client ended its stream at a message longer than the 4 MiB that stock clients "
                "receive; it counts as failed: lower max_message_size, or raise what the client "
                "receives",
                topic=self._registered.topic.name,
                subscription=self._registered.subscription.name,
                consumer=self._registered.consumer.name,
                offset=refused,
            )

    async def aclose(self) -> None:
        """Let the stream end."""
        await self._groups.aclose()


def _long_messages(group: Sequence[Body]) -> list[Offset]:
    """Return the offsets of messages in a group that stock clients do not take."""
    found = []
    for body in group:
        if body_bytes(body) > RECEIVED_BYTES_MAX:
            # The last part says where the message is from, and is whole by itself.
            last = body if isinstance(body, bytes) else bytes(body[-1])
            found.append(Offset(delivered_place(last)[1]))
    return found


def _offset(request: api.AckRequest | api.NackRequest) -> Offset:
    if not request.HasField("msg_id"):
        raise InvalidRequest("the request has no msg_id; send back the one of the message")
    return Offset(request.msg_id.topic_offset)


def _answer(
    reply: Reply, answer: api.AckResponse | api.NackResponse, error: DanubeError | None
) -> None:
    if error is not None:
        _refuse(reply, error)
    else:
        reply.send(answer.SerializeToString())


async def _pieces(
    registered: RegisteredConsumer, stream: ConsumerStream, delivery: Delivery
) -> AsyncIterator[Piece]:
    """Read what a delivery is made of; offsets that hold nothing any more count as settled."""
    if delivery.pieces is not None:
        for piece in delivery.pieces:
            yield piece
        return
    log = registered.topic.log
    assert log is not None
    subscription = registered.subscription
    missing = partial(subscription.missing, stream)
    async for piece in read_pieces(log, delivery.start, delivery.end, missing):
        for part in subscription.sendable(stream, delivery, piece):
            yield part


def _refuse(reply: Reply, error: CallRefused | DanubeError) -> None:
    refused = error if isinstance(error, CallRefused) else refusal(error)
    reply.refuse(refused.code, refused.text)
