"""Reads a topic in batches, without a subscription: nothing is acked, nobody else notices."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pyarrow as pa

from pydanube.client import flight
from pydanube.client.brokers import Brokers
from pydanube.client.flight import MessageBatch
from pydanube.client.frames import load, pandas_of, polars_of, table_of
from pydanube.client.positions import AtTime, reader_position
from pydanube.errors import DanubeError, NotFound, NotSupported
from pydanube.wire.flight.descriptors import Position


class Reader:
    """The messages of a reliable topic, or of all its partitions, between two positions.

    `start` and `end` are offsets, "earliest", "latest", or times; `end` itself is left out. A time,
    a datetime with its zone or "time:<milliseconds since 1970>", means the first message that was
    published then or later, in each partition. Each call reads anew, goes on where it was after a
    lost connection, and gives no message twice.
    """

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        start: int | str | datetime,
        end: int | str | datetime,
    ) -> None:
        self.topic = topic
        self._brokers = brokers
        self._start = reader_position(start)
        self._end = reader_position(end)

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Iterate over Arrow batches: those of one partition in order, one partition after another.

        A batch has the columns of a message; its rows lie at `offset`, `offset + 1` and so on.
        NotSupported where brokers have no Arrow Flight.
        """
        topics = await self._brokers.partitions(self.topic)
        if not topics:
            raise NotFound(f"there is no topic {self.topic}")
        for topic in topics:
            async for batch in self._batches_of(topic):
                yield batch

    async def to_arrow(self) -> pa.Table:
        """Read everything into a table: topic, offset, and the columns of a message."""
        return table_of([batch async for batch in self.batches()])

    # Neither library has to be installed, so their types cannot be named here.

    async def to_pandas(self) -> Any:  # noqa: ANN401
        """Read everything into a pandas DataFrame."""
        load("pandas")  # Before anything is read.
        return pandas_of(await self.to_arrow())

    async def to_polars(self) -> Any:  # noqa: ANN401
        """Read everything into a polars DataFrame."""
        load("polars")  # Before anything is read.
        return polars_of(await self.to_arrow())

    async def _batches_of(self, topic: str) -> AsyncIterator[MessageBatch]:
        position = await self._place(topic, self._start)
        end = await self._place(topic, self._end)
        connection = self._brokers.service
        attempt = 0
        while True:
            connection = await self._brokers.serving(topic, connection)
            try:
                async for batch in flight.get(connection, topic, position, end):
                    yield batch
                    position = batch.offset + batch.rows.num_rows
                    attempt = 0
            except NotSupported as error:
                raise _without_flight(topic) from error
            except DanubeError as error:
                if not (error.retryable and self._brokers.surroundings.retry.allows(attempt)):
                    raise
            else:
                return
            await self._brokers.pause(attempt)
            attempt += 1

    async def _place(self, topic: str, position: Position | AtTime) -> Position:
        if not isinstance(position, AtTime):
            return position
        time_ms = position.time_ms
        try:
            _, offset = await self._brokers.attach(
                topic,
                self._brokers.service,
                lambda connection: flight.offset_at(connection, topic, time_ms),
            )
        except NotSupported as error:
            raise _without_flight(topic) from error
        return offset


def _without_flight(topic: str) -> NotSupported:
    return NotSupported(
        f"the broker of {topic} has no Arrow Flight, which readers need: without it nothing tells "
        "where a topic ends, and reading would leave a subscription behind. Consume it instead: "
        f'client.consumer("{topic}", "my-subscription", start_position="earliest")'
    )
