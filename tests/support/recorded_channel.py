"""A channel that writes down what passes through it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing

from typing_extensions import override

from pydanube.wire.calls import Body, CallRefused, ExchangeChannel, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.support.history import Ack, Delivery, History, Nack, Outcome, Registered, Send, Stream

ATTEMPT = "x-delivery-attempt"
PADDING = b"|"
"""What follows it in a payload is there for its length only."""

# The broker says so before it takes anything in; after any other status it may have.
_CERTAIN = frozenset(
    {
        StatusCode.INVALID_ARGUMENT,
        StatusCode.NOT_FOUND,
        StatusCode.ALREADY_EXISTS,
        StatusCode.PERMISSION_DENIED,
        StatusCode.RESOURCE_EXHAUSTED,
        StatusCode.FAILED_PRECONDITION,
        StatusCode.UNIMPLEMENTED,
    }
)


class RecordedChannel(ExchangeChannel):
    """Passes calls on and enters them into a history, under the name of one client.

    The client may have several of these one after another: `memory` goes from one to the next.
    """

    def __init__(
        self,
        channel: ExchangeChannel,
        history: History,
        client: str,
        memory: "ClientMemory",
        server: Callable[[], str] = str,
    ) -> None:
        self._channel = channel
        self._server = server
        self._history = history
        self._client = client
        self._memory = memory

    @override
    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        entry = self._begin(path, request)
        try:
            reply = await self._channel.unary(
                path, request, metadata=metadata, timeout_seconds=timeout_seconds
            )
        except CallRefused as refused:
            outcome: Outcome = "fail" if refused.code in _CERTAIN else "info"
            if isinstance(entry, Send):
                entry.continues_nothing = refused.code is StatusCode.OUT_OF_RANGE
            self._end(path, entry, outcome, str(refused))
            raise
        except BaseException as error:
            self._end(path, entry, "info", type(error).__name__)
            raise
        self._end(path, entry, "ok", "")
        self._take_reply(path, request, entry, reply)
        return reply

    @override
    async def stream(
        self, path: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        assert path == services.RECEIVE_MESSAGES.path, "the only stream there is"
        consumer = api.ReceiveRequest.FromString(request).consumer_id
        history, memory = self._history, self._memory
        name = memory.consumers.get(consumer, str(consumer))
        stream = Stream(
            number=len(history.streams) + 1,
            client=self._client,
            consumer=name,
            session_at=min(history.now(), memory.subscribing.get(name, history.now())),
            boot=history.boot,
        )
        history.streams.append(stream)
        history.note(f"{self._client}: stream {stream.number} for {name}")
        try:
            replies = self._channel.stream(path, request, metadata=metadata)
            assert isinstance(replies, AsyncGenerator), "it must be possible to close it"
            async with aclosing(replies):
                async for reply in replies:
                    memory.subscribing.pop(name, None)
                    self._received(stream, api.StreamMessage.FromString(reply))
                    yield reply
        except CallRefused as refused:
            history.note(f"{self._client}: stream {stream.number} ended: {refused}")
            raise

    @override
    def exchange(
        self,
        path: str,
        requests: AsyncIterator[Body],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[bytes]:
        return self._channel.exchange(path, requests, metadata=metadata)

    @override
    async def close(self) -> None:
        await self._channel.close()

    def _begin(self, path: str, request: bytes) -> Send | Ack | Nack | None:
        history, client = self._history, self._client
        if path == services.SEND_MESSAGE.path:
            message = api.StreamMessage.FromString(request)
            send = Send(
                history.now(),
                client,
                message.msg_id.topic_name,
                message.producer_name,
                value_of(message.payload),
                message.routing_key if message.HasField("routing_key") else None,
                numbered=message.HasField("producer_sequence"),
            )
            history.sends.append(send)
            return send
        if path == services.ACK.path:
            place = api.AckRequest.FromString(request)
            ack = Ack(
                history.now(),
                client,
                place.msg_id.topic_name,
                place.subscription_name,
                place.msg_id.topic_offset,
            )
            history.acks.append(ack)
            return ack
        if path == services.NACK.path:
            return self._begin_nack(api.NackRequest.FromString(request))
        if path == services.SUBSCRIBE.path:
            wanted = api.ConsumerRequest.FromString(request)
            self._memory.subscribing.setdefault(_consumer_name(wanted), history.now())
        return None

    def _begin_nack(self, request: api.NackRequest) -> Nack:
        history = self._history
        place = (request.msg_id.topic_name, request.subscription_name, request.msg_id.topic_offset)
        nack = Nack(
            history.now(),
            self._client,
            *place,
            attempt=0,
            seen=dict(self._memory.attempts.get((history.boot, *place), {})),
            boot=history.boot,
        )
        history.nacks.append(nack)
        return nack

    def _end(self, path: str, entry: Send | Ack | Nack | None, outcome: Outcome, why: str) -> None:
        if entry is None:
            self._history.note(f"{self._client}: {path.rpartition('/')[2]} {outcome} {why}")
            return
        entry.ended = self._history.now()
        entry.outcome = outcome
        if isinstance(entry, Nack):
            entry.boot_ended = self._history.boot
            entry.attempt = entry.seen.get(self._server(), 0)
        if outcome != "ok":
            self._history.note(f"{self._client}: {_in_words(entry)} {outcome}: {why}")

    def _take_reply(
        self, path: str, request: bytes, entry: Send | Ack | Nack | None, reply: bytes
    ) -> None:
        history = self._history
        if isinstance(entry, Send):
            answer = api.MessageResponse.FromString(reply)
            entry.offset = answer.topic_offset if answer.HasField("topic_offset") else None
        if entry is not None:
            history.note(f"{self._client}: {_in_words(entry)} ok")
            history.answered()
        elif path == services.SUBSCRIBE.path:
            wanted = api.ConsumerRequest.FromString(request)
            given = api.ConsumerResponse.FromString(reply).consumer_id
            name = _consumer_name(wanted)
            self._memory.consumers[given] = name
            history.registered.append(Registered(history.now(), "consumer", name, given))
        elif path == services.CREATE_PRODUCER.path:
            asked = api.ProducerRequest.FromString(request)
            producer_id = api.ProducerResponse.FromString(reply).producer_id
            producer = f"{asked.topic_name} {asked.producer_name}"
            history.registered.append(Registered(history.now(), "producer", producer, producer_id))

    def _received(self, stream: Stream, message: api.StreamMessage) -> None:
        history, place = self._history, message.msg_id
        delivery = Delivery(
            history.now(),
            stream,
            place.topic_name,
            message.subscription_name,
            place.topic_offset,
            value_of(message.payload),
            message.routing_key if message.HasField("routing_key") else None,
            message.producer_name,
            int(message.attributes.get(ATTEMPT, "1")),
            dict(message.attributes),
        )
        history.deliveries.append(delivery)
        known = (stream.boot, place.topic_name, message.subscription_name, place.topic_offset)
        seen, server = self._memory.attempts.setdefault(known, {}), self._server()
        seen[server] = max(seen.get(server, 0), delivery.attempt)
        history.note(
            f"{self._client}: got {delivery.value} at {delivery.offset} of {delivery.topic}, "
            f"{delivery.subscription}, attempt {delivery.attempt}, stream {stream.number}"
        )


class ClientMemory:
    """What a client's recorder remembers from one connection to the next."""

    def __init__(self) -> None:
        self.consumers: dict[int, str] = {}
        self.subscribing: dict[str, int] = {}
        """Since when a consumer may have messages gathered for it without a stream."""
        self.attempts: dict[tuple[int, str, str, int], dict[str, int]] = {}


def payload_of(value: str, length: int = 0) -> bytes:
    """Return a payload that carries the value and has at least this many bytes."""
    return (value.encode() + PADDING).ljust(length, b".")


def value_of(payload: bytes) -> str:
    return payload.split(PADDING, 1)[0].decode()


def _consumer_name(wanted: api.ConsumerRequest) -> str:
    return f"{wanted.topic_name} {wanted.subscription} {wanted.consumer_name}"


def _in_words(entry: Send | Ack | Nack) -> str:
    if isinstance(entry, Send):
        return f"send {entry.value} to {entry.topic} -> {entry.offset}"
    verb = type(entry).__name__.lower()
    return f"{verb} {entry.offset} of {entry.topic}, {entry.subscription}"
