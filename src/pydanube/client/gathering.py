"""Gathers single messages into batches: what is sent in one turn of the event loop goes together.

Whoever sends one at a time pays for a batch of one, and waits for nobody unless it asked to linger.
"""

import asyncio
from collections.abc import Callable, Sequence

import pyarrow as pa
from typing_extensions import override

from pydanube.client.batch_producer import BatchProducer, Piece
from pydanube.client.message import SentMessage
from pydanube.client.options import SendOptions
from pydanube.client.room import Room
from pydanube.errors import DanubeError, NotSupported
from pydanube.model.batch import gather_columns
from pydanube.model.message import Message
from pydanube.runtime.clock import Clock, Timer
from pydanube.runtime.tasks import call_soon

Answer = asyncio.Future[SentMessage]
SendAlone = Callable[[Message, Answer], None]
"""Sends a message through the per-message API, and answers it."""


class Gatherer:
    """Turns messages into pieces of one topic's batches; they are stored in the order of `add`."""

    def __init__(
        self,
        topic: str,
        batches: BatchProducer,
        seconds_max: float,
        room: Room,
        send_alone: SendAlone,
        options: SendOptions,
        clock: Clock,
    ) -> None:
        self.topic = topic
        self.room = room
        self.send_alone = send_alone
        self._batches = batches
        self._seconds_max = seconds_max
        self._options = options
        self._clock = clock
        self._lingering: Timer | None = None
        self._messages: list[Message] = []
        self._answers: list[Answer] = []
        self._bytes = 0
        self.sent = 0
        """How many messages were answered, or are about to be."""

    def add(self, message: Message) -> Answer:
        """Take a message in; its answer comes once it is as durable as the topic promises."""
        answer: Answer = asyncio.get_running_loop().create_future()
        if not self._messages:
            self._flush_later()
        self._messages.append(message)
        self._answers.append(answer)
        self._bytes += len(message.payload)
        options = self._options
        is_full = len(self._messages) >= options.batch_messages_max
        if is_full or self._bytes >= options.batch_bytes_max:
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
        if not self._messages:
            return
        piece = _MessagesPiece(self, self._messages, self._answers, self._bytes)
        self._messages, self._answers, self._bytes = [], [], 0
        self._batches.publish(piece, self._seconds_max)


class _MessagesPiece(Piece):
    """Messages that were sent in one turn of the event loop."""

    def __init__(
        self,
        gatherer: Gatherer,
        messages: Sequence[Message],
        answers: Sequence[Answer],
        size: int,
    ) -> None:
        self.rows = len(messages)
        self._gatherer = gatherer
        self._messages = messages
        self._answers = answers
        self._bytes = size
        self._in_room = True

    @property
    @override
    def is_over(self) -> bool:
        return all(answer.done() for answer in self._answers)

    @override
    def columns(self) -> pa.RecordBatch:
        return gather_columns(self._messages)

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
        for message, answer in zip(self._messages, self._answers, strict=True):
            if alone:
                self._gatherer.send_alone(message, answer)
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
        return [
            _MessagesPiece(self._gatherer, [message], [answer], len(message.payload))
            for message, answer in zip(self._messages, self._answers, strict=True)
        ]

    def _leave_room(self) -> None:
        if self._in_room:
            self._in_room = False
            self._gatherer.room.leave(self.rows, self._bytes)
