"""Reads a topic in batches, without a subscription: nothing is acked, nobody else notices."""

from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa

from pydanube.client import flight
from pydanube.client.brokers import Brokers
from pydanube.client.flight import MessageBatch
from pydanube.errors import DanubeError, NotFound
from pydanube.model.batch import SCHEMA
from pydanube.wire.flight.descriptors import Position


class Reader:
    """The messages of a reliable topic, or of all its partitions, between two positions.

    `start` and `end` are offsets, "earliest" or "latest"; `end` itself is left out. Each call reads
    anew, goes on where it was after a lost connection, and gives no message twice.
    """

    def __init__(self, brokers: Brokers, topic: str, start: Position, end: Position) -> None:
        self.topic = topic
        self._brokers = brokers
        self._start: Position = start
        self._end: Position = end

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Iterate over Arrow batches: those of one partition in order, one partition after another.

        A batch has the columns of a message; its rows lie at `offset`, `offset + 1` and so on.
        """
        topics = await self._brokers.service.partitions(self.topic)
        if not topics:
            raise NotFound(f"there is no topic {self.topic}")
        for topic in topics:
            async for batch in self._batches_of(topic):
                yield batch

    async def to_arrow(self) -> pa.Table:
        """Read everything into a table: topic, offset, and the columns of a message."""
        schema = pa.schema([("topic", pa.utf8()), ("offset", pa.int64()), *SCHEMA])
        parts = []
        async for batch in self.batches():
            count = batch.rows.num_rows
            offsets = pa.array(range(batch.offset, batch.offset + count), pa.int64())
            topics = pa.repeat(batch.topic, count)
            columns = [topics, offsets, *batch.rows.columns]
            parts.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return pa.Table.from_batches(parts, schema)

    # Neither library has to be installed, and each is loaded when it is asked for. So their types
    # cannot be named here.

    async def to_pandas(self) -> Any:  # noqa: ANN401
        """Read everything into a pandas DataFrame."""
        return (await self.to_arrow()).to_pandas()

    async def to_polars(self) -> Any:  # noqa: ANN401
        """Read everything into a polars DataFrame."""
        from polars import from_arrow

        return from_arrow(await self.to_arrow())

    async def _batches_of(self, topic: str) -> AsyncIterator[MessageBatch]:
        position = self._start
        connection = self._brokers.service
        attempt = 0
        while True:
            connection = await self._brokers.serving(topic, connection)
            try:
                async for batch in flight.get(connection, topic, position, self._end):
                    yield batch
                    position = batch.offset + batch.rows.num_rows
                    attempt = 0
            except DanubeError as error:
                if not (error.retryable and self._brokers.surroundings.retry.allows(attempt)):
                    raise
            else:
                return
            await self._brokers.pause(attempt)
            attempt += 1
