"""A stock Flight client, pyarrow's, with what PyDanube's JSON says taken apart.

Its calls block. In a test with a broker in the same process they run in threads: `call`.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

SECONDS_MAX = 20.0
PATIENCE = flight.FlightCallOptions(timeout=SECONDS_MAX)
PAYLOADS = pa.schema([("payload", pa.binary())])

Result = TypeVar("Result")


async def call(function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Run a blocking call beside the event loop of the broker."""
    work = asyncio.to_thread(function, *arguments, **options)
    return await asyncio.wait_for(work, SECONDS_MAX * 2)


def payload_batch(payloads: Sequence[bytes], **columns: Any) -> pa.RecordBatch:
    """Return a batch of payloads, and of other columns by name."""
    given = {"payload": pa.array(payloads, pa.binary()), **columns}
    return pa.record_batch(list(given.values()), names=list(given))


class Rows:
    """Some rows as they were received."""

    def __init__(self, batch: pa.RecordBatch, said: dict[str, Any]) -> None:
        self.batch = batch
        self.offset: int | None = said.get("offset")
        self.attempt: int | None = said.get("attempt")
        self.mark: str | None = said.get("mark")

    @property
    def payloads(self) -> list[bytes]:
        return self.batch.column("payload").to_pylist()

    @property
    def offsets(self) -> list[int]:
        assert self.offset is not None, "the rows have no offsets"
        return list(range(self.offset, self.offset + self.batch.num_rows))


class Put:
    """One DoPut."""

    def __init__(self, peer: "FlightPeer", schema: pa.Schema, command: dict[str, Any]) -> None:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        self.writer, self.reader = peer.client.do_put(descriptor, schema, PATIENCE)

    def write(self, batch: pa.RecordBatch, **numbers: int) -> None:
        if numbers:
            self.writer.write_with_metadata(batch, json.dumps(numbers).encode())
        else:
            self.writer.write_batch(batch)

    def result(self) -> dict[str, Any] | None:
        """Wait for the next result; None if the call has ended."""
        found = self.reader.read()
        return None if found is None else json.loads(found.to_pybytes())

    def close(self) -> None:
        """End the call; raises what the broker refused it with."""
        self.writer.close()

    def refusal(self) -> str:
        """End a call that the broker must have refused, and return its words."""
        try:
            self.close()
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            return str(error)
        raise AssertionError("the broker has not refused the call")


class Exchange:
    """One DoExchange: a consumer."""

    def __init__(self, peer: "FlightPeer", command: dict[str, Any]) -> None:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        self.writer, self.reader = peer.client.do_exchange(descriptor, PATIENCE)
        peer.exchanges.append(self)
        self.acked: list[int] = []
        self._early: deque[Rows] = deque()

    def say(self, **words: Any) -> None:
        self.writer.write_metadata(json.dumps(words).encode())

    def next(self) -> Rows:
        """Wait for the next rows; StopIteration if the call has ended."""
        while not self._early:
            self._read()
        return self._early.popleft()

    def _read(self) -> None:
        chunk = self.reader.read_chunk()
        said = json.loads(chunk.app_metadata.to_pybytes())
        if chunk.data is not None:
            self._early.append(Rows(chunk.data, said))
        else:
            self.acked.append(said["acked"])

    def take(self, count: int) -> list[Rows]:
        """Wait for rows until there are `count`."""
        taken: list[Rows] = []
        while sum(rows.batch.num_rows for rows in taken) < count:
            taken.append(self.next())
        assert sum(rows.batch.num_rows for rows in taken) == count, "more came than was due"
        return taken

    def payloads(self, count: int) -> list[bytes]:
        return [payload for rows in self.take(count) for payload in rows.payloads]

    def offsets(self, count: int) -> list[int]:
        return [offset for rows in self.take(count) for offset in rows.offsets]

    def ack(self, *ranges: tuple[int, int], **words: Any) -> None:
        """Ack, and wait until that is durable."""
        number = len(self.acked) + 1
        self.say(ack=ranges, id=number, **words)
        self.wait_acked(number)

    def wait_heard(self) -> None:
        """Wait until the broker has let this consumer in and heard all it has said.

        Opening a call and saying something return at once: until then what is published meanwhile
        may come before them.
        """
        self.ack()

    def wait_acked(self, number: int) -> None:
        while number not in self.acked:
            self._read()

    def leave(self) -> None:
        """Say that nothing more will be said, and wait for the end."""
        self.writer.done_writing()
        try:
            while True:
                self.reader.read_chunk()
        except StopIteration:
            pass
        self.writer.close()

    def end(self) -> str | None:
        """Wait until the broker ends the call; return its words if it was refused."""
        try:
            while True:
                self.reader.read_chunk()
        except StopIteration:
            return None
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            return str(error)

    def cancel(self) -> None:
        self.reader.cancel()


class FlightPeer:
    """One connection of a stock client."""

    def __init__(self, port: int) -> None:
        self.client = flight.connect(f"grpc://127.0.0.1:{port}")
        self.exchanges: list[Exchange] = []

    def close(self) -> None:
        # Closing waits for calls that are under way.
        for exchange in self.exchanges:
            exchange.cancel()
        self.client.close()

    # Publishing.

    def put(self, topic: str, schema: pa.Schema = PAYLOADS, **command: Any) -> Put:
        return Put(self, schema, {"topic": topic, **command})

    def publish(self, topic: str, *batches: pa.RecordBatch, **command: Any) -> list[dict[str, Any]]:
        """Publish batches and return their results, once all are durable."""
        put = self.put(topic, batches[0].schema, **command)
        for batch in batches:
            put.write(batch)
        put.writer.done_writing()
        results = []
        while (result := put.result()) is not None:
            results.append(result)
        put.close()
        return results

    # Reading.

    def read(self, ticket: str | dict[str, Any] | flight.Ticket) -> list[Rows]:
        if isinstance(ticket, dict):
            ticket = json.dumps(ticket)
        if isinstance(ticket, str):
            ticket = flight.Ticket(ticket.encode())
        reader = self.client.do_get(ticket, PATIENCE)
        return [Rows(chunk.data, json.loads(chunk.app_metadata.to_pybytes())) for chunk in reader]

    def payloads(self, ticket: str | dict[str, Any] | flight.Ticket) -> list[bytes]:
        return [payload for rows in self.read(ticket) for payload in rows.payloads]

    def plan(self, **command: Any) -> flight.FlightInfo:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        return self.client.get_flight_info(descriptor, PATIENCE)

    def topics(self, prefix: str = "") -> dict[str, flight.FlightInfo]:
        infos = self.client.list_flights(prefix.encode(), PATIENCE)
        return {info.descriptor.path[0].decode(): info for info in infos}

    # Consuming and acting.

    def subscribe(self, topic: str, subscription: str, consumer: str, **command: Any) -> Exchange:
        return Exchange(
            self,
            {"topic": topic, "subscription": subscription, "consumer": consumer, **command},
        )

    def act(self, name: str, /, **body: Any) -> dict[str, Any]:
        action = flight.Action(name, json.dumps(body).encode())
        (result,) = self.client.do_action(action, PATIENCE)
        return json.loads(result.body.to_pybytes())


def refusal_of(function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Make a call that must be refused, and return the broker's words."""
    try:
        function(*arguments, **options)
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        return str(error)
    raise AssertionError("the call was not refused")
