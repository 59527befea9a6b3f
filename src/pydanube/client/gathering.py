"""Gathers single messages into batches: what is sent in one turn of the event loop goes together.

Whoever sends one at a time pays for a batch of one, and waits for nobody unless it asked to linger.
"""

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from msgspec import Struct
from typing_extensions import override

from pydanube.client.batch_producer import BatchProducer, Piece
from pydanube.client.message import SentMessage
from pydanube.client.options import SendOptions
from pydanube.client.room import Room
from pydanube.errors import DanubeError, NotSupported
from pydanube.model.batch import gather_columns, payload_columns
from pydanube.model.message import Message
from pydanube.runtime.clock import Clock, Timer
from pydanube.runtime.tasks import call_soon

Answer = asyncio.Future[SentMessage]
SendAlone = Callable[[Message, Answer], None]
"""Sends a message through the per-message API, and answers it."""
Extra = tuple[str | None, Mapping[str, str] | None]
"""The routing key and the attributes of a message."""
_NOTHING: Extra = (None, None)


class Common(Struct, frozen=True):
    """What all messages of a producer have in common."""

    producer_name: str
    schema_id: int | None
    schema_version: int | None


class Gatherer:
    """Turns messages into pieces of one topic's batches; they are stored in the order of `add`.

    Those that do not linger have one publish time: that of the turn they are sent in.
    """

    def __init__(
        self,
        topic: str,
        batches: BatchProducer,
        seconds_max: float,
        room: Room,
        send_alone: SendAlone,
        options: SendOptions,
        common: Common,
        clock: Clock,
    ) -> None:
        self.topic = topic
        self.room = room
        self.send_alone = send_alone
        self.common = common
        self._batches = batches
        self._seconds_max = seconds_max
        self._options = options
        self._messages_max = options.batch_messages_max
        self._bytes_max = options.batch_bytes_max
        self._clock = clock
        self._lingering: Timer | None = None
        # Asked for once: it costs a system call, and belongs to one event loop anyway.
        self._new_answer = asyncio.get_running_loop().create_future
        self._payloads: list[bytes] = []
        self._answers: list[Answer] = []
        self._extras: dict[int, Extra] = {}
        self._times: list[int] = []
        self._bytes = 0
        self.sent = 0
        """How many messages were answered, or are about to be."""

    def add(
        self, payload: bytes, routing_key: str | None, attributes: Mapping[str, str] | None
    ) -> Answer:
        """Take a message in; its answer comes once it is as durable as the topic promises."""
        answer: Answer = self._new_answer()
        payloads = self._payloads
        if not payloads:
            self._flush_later()
        if routing_key is not None or attributes is not None:
            self._extras[len(payloads)] = (routing_key, attributes)
        if self._lingering is not None:
            self._times.append(self._clock.now_ms())
        payloads.append(payload)
        self._answers.append(answer)
        self._bytes += len(payload)
        if len(payloads) >= self._messages_max or self._bytes >= self._bytes_max:
            self.flush()
        return answer

    def _flush_later(self) -> None:
        if self._options.linger_ms:
            self._lingering = self._clock.call_later(self._options.linger_ms / 1_000, self.flush)
        else:
            call_soon(self.flush)

    def flush(self) -> None:
        """Send what has gathered now."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        if not self._payloads:
            return
        times = array("q", self._times)
        if not times:
            times = array("q", (self._clock.now_ms(),)) * len(self._payloads)
        piece = _MessagesPiece(
            self, self._payloads, times, self._extras, self._answers, self._bytes
        )
        self._payloads, self._answers, self._bytes = [], [], 0
        self._extras, self._times = {}, []
        self._batches.publish(piece, self._seconds_max)


class _MessagesPiece(Piece):
    """Messages that were sent in one turn of the event loop."""

    def __init__(
        self,
        gatherer: Gatherer,
        payloads: Sequence[bytes],
        times: "array[int]",
        extras: Mapping[int, Extra],
        answers: Sequence[Answer],
        size: int,
    ) -> None:
        self.rows = len(payloads)
        self._gatherer = gatherer
        self._payloads = payloads
        self._times = times
        self._extras = extras
        self._answers = answers
        self._bytes = size
        self._in_room = True

    @property
    @override
    def is_over(self) -> bool:
        return all(answer.done() for answer in self._answers)

    @override
    def columns(self) -> pa.RecordBatch:
        if self._extras:
            return gather_columns([self._message(row) for row in range(self.rows)])
        common = self._gatherer.common
        return payload_columns(
            self._payloads,
            self._times,
            common.producer_name,
            common.schema_id,
            common.schema_version,
        )

    def _message(self, row: int) -> Message:
        common = self._gatherer.common
        routing_key, attributes = self._extras.get(row, _NOTHING)
        return Message(
            payload=self._payloads[row],
            publish_time_ms=self._times[row],
            producer_name=common.producer_name,
            routing_key=routing_key,
            attributes=attributes,
            schema_id=common.schema_id,
            schema_version=common.schema_version,
        )

    @override
    def stored(self, offset: int | None) -> None:
        gatherer = self._gatherer
        topic, number = gatherer.topic, gatherer.sent + 1
        gatherer.sent += self.rows
        place = offset
        for row, answer in enumerate(self._answers):
            if not answer.done():
                if offset is not None:
                    place = offset + row
                answer.set_result(SentMessage(topic, number + row, place))
        self._leave_room()

    @override
    def failed(self, error: DanubeError) -> None:
        alone = isinstance(error, NotSupported) and self._in_room
        for row, answer in enumerate(self._answers):
            if alone:
                self._gatherer.send_alone(self._message(row), answer)
            elif not answer.done():
                answer.set_exception(error)
        if alone:
            self._in_room = False  # Each message leaves it by itself.
        self._leave_room()

    @override
    def alone(self) -> list[Piece]:
        if self.rows == 1:
            return []
        self._in_room = False
        return [self._row(row) for row in range(self.rows)]

    def _row(self, row: int) -> Piece:
        extra = self._extras.get(row)
        return _MessagesPiece(
            self._gatherer,
            [self._payloads[row]],
            self._times[row : row + 1],
            {} if extra is None else {0: extra},
            [self._answers[row]],
            len(self._payloads[row]),
        )

    def _leave_room(self) -> None:
        if self._in_room:
            self._in_room = False
            self._gatherer.room.leave(self.rows, self._bytes)
