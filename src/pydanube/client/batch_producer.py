"""Publishes to one topic or partition through one stream, across restarts and moves of brokers."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Protocol

import pyarrow as pa
from typing_extensions import override

from pydanube.client import flight
from pydanube.client.brokers import Brokers
from pydanube.client.message import SentBatch
from pydanube.client.options import Compression
from pydanube.client.packing import pack
from pydanube.client.rows import pieces_of
from pydanube.errors import DanubeError, InvalidRequest, NotSupported, Unavailable
from pydanube.model.policies import DispatchStrategy
from pydanube.runtime.clock import Timer
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import Body
from pydanube.wire.flight.descriptors import PublishCommand


class Piece(Protocol):
    """Rows that are published together.

    `stored` or `failed` is called sooner or later; only the first call counts. A piece that has
    been divided by `alone` is represented by its rows, and may still be told that it failed.
    """

    rows: int

    @property
    def is_over(self) -> bool:
        """Tell whether nobody waits for it any more."""

    def columns(self) -> pa.RecordBatch:
        """Return the rows in the columns of a message."""

    def stored(self, offset: int | None) -> None:
        """Take in that the rows are as durable as promised, and where the first of them lies."""

    def failed(self, error: DanubeError) -> None:
        """Take in that the rows are refused, or that nobody knows what became of them."""

    def alone(self) -> "list[Piece]":
        """Return its rows one by one, to find out which of them was refused; empty: as a whole."""


class _Entry:
    """A piece with its number, on its way."""

    __slots__ = ("message", "piece", "sequence", "timer")

    def __init__(self, piece: Piece, sequence: int) -> None:
        self.piece = piece
        self.sequence = sequence
        self.message: Body | None = None
        self.timer: Timer | None = None

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class BatchProducer:
    """Sends pieces behind each other without waiting, and each again until it is answered.

    They are stored in the order of `publish`. On reliable topics their rows are numbered, so that
    repeating them is harmless. A broker that refuses a piece has stored nothing behind it, so what
    follows goes out again in a new stream. Nothing runs while nothing is under way and no stream
    is open.
    """

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        name: str,
        dispatch: DispatchStrategy,
        compression: Compression,
        schema_subject: str | None = None,
    ) -> None:
        reliable = dispatch == "Reliable"
        self._command = PublishCommand(
            topic=topic,
            producer=name,
            dispatch="reliable" if reliable else "non_reliable",
            schema_subject=schema_subject,
            # Another life under the same name must not look like this one.
            session=brokers.surroundings.randomness.below(2**63) if reliable else None,
        )
        self._brokers = brokers
        self._connection = brokers.service
        self._numbered = reliable
        self._compression: Compression = compression
        self._next_sequence = 0
        self._queued: deque[_Entry] = deque()
        self._under_way: deque[_Entry] = deque()
        self._more: asyncio.Future[None] | None = None
        self._tasks = TaskScope(self._broke)
        self._is_running = False
        self._has_answered = False  # Since the stream was opened.
        self._patience: asyncio.Timeout | None = None
        self.last_refusal: DanubeError | None = None

    def publish(self, piece: Piece, seconds_max: float) -> None:
        """Take a piece in; it fails after that long, unless it is answered before."""
        entry = _Entry(piece, self._next_sequence)
        self._next_sequence += piece.rows
        clock = self._brokers.surroundings.clock
        entry.timer = clock.call_later(seconds_max, lambda: self._expire(entry, seconds_max))
        self._queued.append(entry)
        if not self._is_running:
            self._is_running = True
            self._tasks.start(self._run(), f"publish to {self._command.topic}")
        elif self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def send(self, rows: pa.RecordBatch, piece_seconds_max: float) -> list[SentBatch]:
        """Publish rows in pieces, and return where each lies; NotSupported: not this broker.

        Raises the error of the first piece that failed, once all have been answered.
        """
        pieces = [_RowsPiece(piece) for piece in pieces_of(rows)]
        for piece in pieces:
            self.publish(piece, piece_seconds_max)
        topic = self._command.topic
        try:
            answers = await asyncio.gather(
                *(piece.answer for piece in pieces), return_exceptions=True
            )
        finally:
            for piece in pieces:
                piece.answer.cancel()
        sent: list[SentBatch] = []
        for piece, answer in zip(pieces, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            sent.append(SentBatch(topic, answer, piece.rows))
        return sent

    async def close(self) -> None:
        """End the stream; what is not answered yet fails."""
        await self._tasks.close()
        self._fail_all(
            Unavailable(
                f"the producer of {self._command.topic} was closed before this was acknowledged; "
                "it may or may not be stored"
            )
        )

    # The stream.

    async def _run(self) -> None:
        attempt = 0
        while self._queued:
            self._has_answered = False
            refusal = await self._stream_until_lost()
            attempt = 0 if self._has_answered else attempt
            if isinstance(refusal, NotSupported):
                self._is_running = False
                self._fail_all(refusal)
                return
            self.last_refusal = refusal or self.last_refusal
            self._queue_again()
            if self._queued and refusal is not None and not refusal.retryable:
                self._refuse(self._queued.popleft(), refusal)
            if self._queued and (refusal is None or refusal.retryable):
                await self._brokers.pause_after(refusal, attempt)
                attempt += 1
                self._queue_again()
        self._is_running = False

    async def _stream_until_lost(self) -> DanubeError | None:
        """Publish until the stream ends; return why, None if it was cut."""
        topic = self._command.topic
        try:
            async with asyncio.timeout(None) as self._patience:
                self._connection = await self._brokers.serving(topic, self._connection)
                answers = flight.put(self._connection, self._command, self._messages())
                async with aclosing(answers):
                    async for offset in answers:
                        self._take_answer(offset)
        except DanubeError as error:
            return error
        except TimeoutError:
            return None
        finally:
            self._patience = None
            self._more = None
        return Unavailable(f"the broker ended the stream to {topic}")

    async def _messages(self) -> AsyncIterator[Body]:
        loop = asyncio.get_running_loop()
        while True:
            while self._queued:
                entry = self._queued.popleft()
                if entry.piece.is_over:
                    self._leave_out(entry)
                    continue
                message = entry.message or self._encode(entry)
                if message is not None:
                    self._under_way.append(entry)
                    yield message
            self._more = loop.create_future()
            await self._more

    def _encode(self, entry: _Entry) -> Body | None:
        """Return a piece as bytes; None if it cannot be sent, and whoever waits has been told."""
        number = entry.sequence if self._numbered else None
        try:
            entry.message = flight.batch_message(
                pack(entry.piece.columns(), self._compression), number
            )
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            self._refuse(entry, InvalidRequest(f"this cannot be sent: {error}"))
        return entry.message

    def _take_answer(self, offset: int | None) -> None:
        if not self._under_way:
            raise DanubeError(f"{self._command.topic} answered a batch that was not sent")
        entry = self._under_way.popleft()
        entry.end()
        self._has_answered = True
        entry.piece.stored(offset)

    # What fails.

    def _refuse(self, refused: _Entry, refusal: DanubeError) -> None:
        """Fail a piece, or find out first which of its rows is meant."""
        rows = refused.piece.alone()
        if not rows:
            refused.end()
            refused.piece.failed(refusal)
        # The deadline of the whole holds for its rows too: they answer to the same callers.
        entries = [_Entry(row, refused.sequence + number) for number, row in enumerate(rows)]
        self._queued.extendleft(reversed(entries))

    def _queue_again(self) -> None:
        self._queued.extendleft(reversed(self._under_way))
        self._under_way.clear()
        while self._queued and self._queued[0].piece.is_over:
            self._leave_out(self._queued.popleft())

    def _leave_out(self, entry: _Entry) -> None:
        entry.end()
        entry.piece.failed(Unavailable("the caller no longer waits for this batch"))

    def _expire(self, entry: _Entry, seconds_max: float) -> None:
        entry.piece.failed(
            Unavailable(
                f"{self._command.topic} acknowledged nothing within {seconds_max:g} s; "
                f"{entry.piece.rows} messages may or may not be stored "
                f"(last refusal: {self.last_refusal})"
            )
        )
        # Whoever was asked does not answer; another stream, perhaps to another broker, may help.
        if entry in self._under_way and self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    def _fail_all(self, error: DanubeError) -> None:
        self._queue_again()
        while self._queued:
            entry = self._queued.popleft()
            entry.end()
            entry.piece.failed(error)

    def _broke(self, name: str, failure: BaseException) -> None:
        self._is_running = False
        self._fail_all(DanubeError(f"{name} failed: {failure!r}"))


class _RowsPiece(Piece):
    """A part of what `send_batch` was given."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows.num_rows
        self.answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._columns = rows

    @property
    @override
    def is_over(self) -> bool:
        return self.answer.done()

    @override
    def columns(self) -> pa.RecordBatch:
        return self._columns

    @override
    def stored(self, offset: int | None) -> None:
        if not self.answer.done():
            self.answer.set_result(offset)

    @override
    def failed(self, error: DanubeError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    @override
    def alone(self) -> list[Piece]:
        return []
