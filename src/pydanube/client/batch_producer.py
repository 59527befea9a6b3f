"""Publishes batches to one topic or partition, across restarts and moves of brokers."""

import asyncio

import pyarrow as pa

from pydanube.client import flight
from pydanube.client.brokers import Brokers
from pydanube.client.message import SentBatch
from pydanube.client.rows import pieces_of
from pydanube.errors import DanubeError, Unavailable
from pydanube.model.policies import DispatchStrategy
from pydanube.wire.flight.descriptors import PublishCommand


class BatchProducer:
    """Sends batches one after the other, each until acknowledged or refused for good.

    On reliable topics the rows are numbered, so that repeating them is harmless. Only the last
    piece may be in doubt, so that a broker always knows the offset of what it has stored before.
    """

    def __init__(self, brokers: Brokers, topic: str, name: str, dispatch: DispatchStrategy) -> None:
        reliable = dispatch == "Reliable"
        # Numbers are counted by name: another life under the same one must not look like this one.
        life = brokers.surroundings.randomness.below(2**48)
        self._command = PublishCommand(
            topic=topic,
            producer=f"{name}-{life:012x}",
            dispatch="reliable" if reliable else "non_reliable",
        )
        self._brokers = brokers
        self._connection = brokers.service
        self._numbered = reliable
        self._next_sequence = 0
        self._turn = asyncio.Lock()
        self._last_refusal: DanubeError | None = None

    async def send(self, rows: pa.RecordBatch, piece_seconds_max: float) -> list[SentBatch]:
        """Publish rows in pieces, and return where each lies; NotSupported: not this broker."""
        sent: list[SentBatch] = []
        async with self._turn:
            for piece in pieces_of(rows):
                try:
                    async with asyncio.timeout(piece_seconds_max):
                        offset = await self._send_piece(piece)
                except TimeoutError as error:
                    raise Unavailable(
                        f"{self._command.topic} acknowledged nothing within {piece_seconds_max:g} "
                        f"s; {sum(each.rows for each in sent)} rows are stored, the next "
                        f"{piece.num_rows} may be (last refusal: {self._last_refusal})"
                    ) from error
                sent.append(SentBatch(self._command.topic, offset, piece.num_rows))
        return sent

    async def _send_piece(self, piece: pa.RecordBatch) -> int | None:
        sequence = self._next_sequence if self._numbered else None
        self._next_sequence += piece.num_rows
        attempt = 0
        while True:
            topic = self._command.topic
            self._connection = await self._brokers.serving(topic, self._connection)
            try:
                return await flight.put(self._connection, self._command, piece, sequence)
            except DanubeError as error:
                if not error.retryable:
                    raise
                self._last_refusal = error
            await self._brokers.pause(attempt)
            attempt += 1
