"""Flight for consumers: a DoExchange is one consumer's stream, fed as its credit allows."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial

from pydanube.broker.servicers.flight_reading import GROUP_BYTES_MAX, small_enough
from pydanube.broker.servicers.pieces import read_pieces
from pydanube.errors import DanubeError, InvalidRequest
from pydanube.model.ids import Offset
from pydanube.model.policies import WINDOW_MAX, SubscriptionType
from pydanube.model.ranges import Range, RangeSet
from pydanube.observability.metrics import BrokerMetrics
from pydanube.runtime.tasks import TaskScope, carry_through
from pydanube.storage.topic_log import Piece
from pydanube.subscriptions.consumer import ConsumerStream, StreamEnded
from pydanube.subscriptions.outbox import Delivery
from pydanube.topics.registration import RegisteredConsumer, Registration
from pydanube.wire.calls import Body, Call, body_bytes
from pydanube.wire.flight.convert import SCHEMA_DATA, rows_message
from pydanube.wire.flight.descriptors import (
    RANGES_MAX,
    AcksDurable,
    ConsumerSays,
    Delivered,
    SubscribeCommand,
    command_of,
    decode_metadata,
    encode,
)
from pydanube.wire.flight.framing import (
    FlightData,
    flight_data,
    metadata_only,
    read_descriptor,
    read_flight_data,
)
from pydanube.wire.flight.ipc import read_head
from pydanube.wire.flight.status import refusals

UNSENT_NOTICES_MAX = 1_000
"""Acks whose callers wait for an answer; beyond, no more is read from the consumer."""
REASON_CHARACTERS_MAX = 1_024

_TYPES: dict[str, SubscriptionType] = {
    "exclusive": "Exclusive",
    "shared": "Shared",
    "failover": "Failover",
    "key_shared": "KeyShared",
}

Groups = AsyncIterator[Sequence[Body]]


class FlightConsuming:
    """Serves DoExchange."""

    def __init__(self, registration: Registration, metrics: BrokerMetrics) -> None:
        self._registration = registration
        self._metrics = metrics

    async def do_exchange(self, requests: AsyncIterator[Body], call: Call) -> Groups:
        """Let a consumer in and give it what its subscription has for it."""
        with refusals():
            first = await anext(requests, None)
            data = read_flight_data(first) if first is not None else None
            if data is None or data.descriptor is None:
                raise InvalidRequest(
                    "a DoExchange begins with a descriptor whose command says what to subscribe to"
                )
            descriptor = read_descriptor(data.descriptor)
            command = command_of(SubscribeCommand, descriptor, "subscribe")
            registered = await carry_through(self._subscribe(command, call.peer))
            stream = registered.subscription.open_stream(registered.consumer, call.peer)
            exchange = ExchangeStream(registered, stream, self._metrics, call.peer)
            return exchange.groups(data, requests)

    async def _subscribe(self, command: SubscribeCommand, peer: str) -> RegisteredConsumer:
        consumer = await self._registration.subscribe(
            command.topic,
            command.subscription,
            command.consumer,
            _TYPES[command.type],
            command.key_filters,
            peer,
            command.start_position,
            credit=command.credit,
            window=command.window,
        )
        registered = self._registration.consumer(consumer.id)
        registered.subscription.check_served()
        return registered


class ExchangeStream:
    """One DoExchange: batches one way; credit, acks and nacks the other.

    No more rows are sent than the consumer has asked for, and no more are read than one group, so
    a consumer that stops reading costs next to nothing. When the call ends, the consumer has left.
    """

    def __init__(
        self,
        registered: RegisteredConsumer,
        stream: ConsumerStream,
        metrics: BrokerMetrics,
        peer: str,
    ) -> None:
        self._peer = peer
        self._registered = registered
        self._subscription = registered.subscription
        self._stream = stream
        topic_metrics = metrics.topic(registered.topic.name)
        self._metrics = topic_metrics.subscription(registered.subscription.name)
        self._reliable = registered.topic.is_reliable
        self._mark = registered.subscription.mark
        self._sent = RangeSet()
        """What it has been sent under that mark and has not acked: what acks without a mark, and of
        everything up to an offset, are about."""
        self._notices: deque[bytes] = deque()
        self._acks_under_way = 0
        self._room = asyncio.Event()
        self._heard_to_the_end = False
        self._error: BaseException | None = None

    async def groups(self, first: FlightData, requests: AsyncIterator[Body]) -> Groups:
        """Yield the schema, then batches as they come, and notices of durable acks."""
        scope = TaskScope(lambda name, error: self._fail(error))
        try:
            scope.start(self._listen(first, requests), "DoExchange")
            yield [SCHEMA_DATA]
            with refusals():
                while True:
                    if self._notices:
                        yield self._take_notices()
                    if self._error is not None:
                        raise self._error
                    deliveries = self._stream.take_nowait(WINDOW_MAX, GROUP_BYTES_MAX)
                    if deliveries:
                        async for group in self._encode(deliveries):
                            yield group
                    elif self._is_over():
                        return
                    elif not self._notices:
                        await self._stream.wait()
        except StreamEnded as ended:
            with refusals():
                if ended.error is not None:
                    raise ended.error from None
                self._subscription.check_holds(self._registered.consumer, self._peer)
        finally:
            self._subscription.close_stream(self._stream)
            await scope.close()

    def _is_over(self) -> bool:
        return self._heard_to_the_end and not self._acks_under_way and not self._notices

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._stream.wake()

    # Out.

    async def _encode(self, deliveries: Sequence[Delivery]) -> Groups:
        group: list[Body] = []
        size = rows = payload_bytes = 0
        for delivery in deliveries:
            async for piece in self._pieces(delivery):
                for part in small_enough(piece):
                    group.append(self._message(part, delivery.attempt))
                    size += body_bytes(group[-1])
                    rows += part.count
                    payload_bytes += part.payload_bytes
                    if size >= GROUP_BYTES_MAX:
                        yield group
                        self._metrics.delivered(rows, payload_bytes)
                        group, size, rows, payload_bytes = [], 0, 0, 0
        if group:
            yield group
            self._metrics.delivered(rows, payload_bytes)

    async def _pieces(self, delivery: Delivery) -> AsyncIterator[Piece]:
        if delivery.pieces is not None:
            for piece in delivery.pieces:
                yield piece
            return
        log = self._registered.topic.log
        assert log is not None, "deliveries of best-effort topics bring their messages"
        missing = partial(self._subscription.missing, self._stream)
        async for piece in read_pieces(log, delivery.start, delivery.end, missing):
            for part in self._subscription.sendable(self._stream, delivery, piece):
                yield part

    def _message(self, piece: Piece, attempt: int) -> Body:
        rows = rows_message(piece.batch, piece.first_row, piece.end_row)
        if not self._reliable:
            return flight_data(rows, encode(Delivered(attempt=attempt)))
        sent = self._sent_now()
        if len(sent) < RANGES_MAX:
            sent.add(piece.start, piece.end)
        said = Delivered(offset=piece.start, attempt=attempt, mark=self._mark)
        return flight_data(rows, encode(said))

    def _sent_now(self) -> RangeSet:
        """Return what has been sent since the subscription was last moved."""
        if self._mark != self._subscription.mark:
            self._mark, self._sent = self._subscription.mark, RangeSet()
        return self._sent

    def _take_notices(self) -> list[bytes]:
        notices = list(self._notices)
        self._notices.clear()
        self._room.set()
        return notices

    # In.

    async def _listen(self, first: FlightData, requests: AsyncIterator[Body]) -> None:
        if first.app_metadata:
            self._hear(first)
        async for request in requests:
            self._hear(read_flight_data(request))
            while len(self._notices) + self._acks_under_way >= UNSENT_NOTICES_MAX:
                self._room.clear()
                await self._room.wait()
        self._heard_to_the_end = True
        self._stream.wake()

    def _hear(self, data: FlightData) -> None:
        if data.header and read_head(bytes(data.header)).row_count:
            raise InvalidRequest("consumers send app_metadata, not rows; publish with DoPut")
        said = decode_metadata(ConsumerSays, data.app_metadata, "what a consumer says")
        acks = self._delivered(said.ack, said.mark)
        if said.ack_until is not None:
            acks += self._sent_now().within(0, said.ack_until)
        for start, end in acks:
            self._sent.remove(start, end)
            self._subscription.ack(Offset(start), Offset(end), self._recorded)
        reason = said.reason[:REASON_CHARACTERS_MAX] if said.reason is not None else None
        for start, end in self._delivered(said.nack, said.mark):
            self._sent.remove(start, end)
            delay_ms = said.delay_ms
            self._subscription.nack(Offset(start), Offset(end), delay_ms, reason, self._recorded)
        if said.credit:
            self._subscription.drained(self._stream, said.credit)
        if said.id is not None:
            self._acks_under_way += 1
            # Moves nothing, and is answered when all before it is durable.
            self._subscription.advance(Offset(0), partial(self._durable, said.id))

    def _delivered(self, ranges: Sequence[Range], mark: str | None) -> list[Range]:
        """Return what of these ranges a consumer may settle: what this subscription delivered.

        It shows so by the mark of the deliveries. Without one it speaks of this stream alone.
        """
        for start, end in ranges:
            if start >= end:
                raise InvalidRequest(f"[{start}, {end}] is no range; its end is the next offset")
        if mark is not None:
            return list(ranges) if self._subscription.knows(mark) else []
        sent = self._sent_now()
        return [part for start, end in ranges for part in sent.within(start, end)]

    def _recorded(self, error: DanubeError | None) -> None:
        if error is not None:
            self._fail(error)

    def _durable(self, ack_id: int, error: DanubeError | None) -> None:
        self._acks_under_way -= 1
        if error is not None:
            self._fail(error)
        else:
            self._notices.append(metadata_only(encode(AcksDurable(acked=ack_id))))
            self._stream.wake()
        self._room.set()
