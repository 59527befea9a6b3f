"""Topics for tests of the Spark data source: filled, sealed, and compared with what is read."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from pydanube.testing.broker import Broker
from tests.support.raw_client import RawClient

SMALL_SEGMENTS = {
    "storage.segments.seal_bytes": 64 * 1024,
    "storage.segments.seal_seconds": 1,
}
SEAL_SECONDS_MAX = 30.0


def payload(number: int) -> bytes:
    return b'{"number": %d}' % number


class Topics:
    """Publishes to a broker and asks it, as a stock Flight client."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = flight.connect(url.replace("http://", "grpc://"))

    def close(self) -> None:
        self._client.close()

    def publish(self, topic: str, numbers: Sequence[int], rows_at_once: int = 500) -> None:
        """Publish one message per number, durably; its payload, key and attributes tell it."""
        for first in range(0, len(numbers), rows_at_once):
            part = numbers[first : first + rows_at_once]
            attributes = [[("n", str(number))] if number % 2 else None for number in part]
            table = pa.table(
                {
                    "payload": pa.array([payload(number) for number in part], pa.binary()),
                    "routing_key": [f"key-{number % 7}" if number % 3 else None for number in part],
                    "attributes": pa.array(attributes, pa.map_(pa.utf8(), pa.utf8())),
                    "publish_time": pa.array([1_000 * number for number in part], pa.int64()),
                }
            )
            descriptor = flight.FlightDescriptor.for_path(topic)
            writer, results = self._client.do_put(descriptor, table.schema)
            writer.write_table(table)
            assert results.read() is not None, f"{topic} took no batch"
            writer.close()

    def publish_payloads(self, topic: str, payloads: Sequence[bytes]) -> None:
        """Publish messages that hold these payloads and nothing else, durably."""
        table = pa.table({"payload": pa.array(payloads, pa.binary())})
        writer, results = self._client.do_put(flight.FlightDescriptor.for_path(topic), table.schema)
        writer.write_table(table)
        assert results.read() is not None, f"{topic} took no batch"
        writer.close()

    def act(self, name: str, **body: Any) -> dict[str, Any]:
        action = flight.Action(name, json.dumps(body).encode())
        (result,) = self._client.do_action(action, flight.FlightCallOptions(timeout=20))
        return json.loads(result.body.to_pybytes())

    def frontier(self, topic: str) -> int:
        (found,) = self.act("frontier", topics=[topic])["topics"].values()
        return found["frontier"]

    def numbers(self, topic: str) -> list[int]:
        """Read what a topic holds, without Spark; the numbers in offset order."""
        reader = self._client.do_get(flight.Ticket(topic.encode()))
        return numbers_of(reader.read_all().column("payload").to_pylist())

    def payloads(self, topic: str) -> list[bytes]:
        """Return the payloads of a topic, in its order."""
        found = self._client.do_get(flight.Ticket(topic.encode())).read_all()
        return found.column("payload").to_pylist()

    def segments(self, topic: str, **command: Any) -> list[tuple[int, int, str | None]]:
        """Return (from, to, segment) of everything there is."""
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"topic": topic, **command}))
        info = self._client.get_flight_info(descriptor)
        notes = [json.loads(endpoint.app_metadata) for endpoint in info.endpoints]
        return [(each["from"], each["to"], each.get("segment")) for each in notes]

    def store(self, topic: str) -> str:
        """Return where segments lie."""
        info = self._client.get_flight_info(flight.FlightDescriptor.for_path(topic))
        return json.loads(info.app_metadata)["store"]

    def wait_sealed(
        self, topic: str, until: int | None = None
    ) -> list[tuple[int, int, str | None]]:
        """Wait until everything, or all offsets below `until`, is in segments."""
        deadline = time.monotonic() + SEAL_SECONDS_MAX
        while True:
            found = self.segments(topic)
            if all(key is not None for _, end, key in found if until is None or end <= until):
                return found
            assert time.monotonic() < deadline, f"{topic} is not sealed: {found}"
            time.sleep(0.05)  # The broker tells nobody when it seals.


def numbers_of(payloads: Sequence[bytes]) -> list[int]:
    return [json.loads(each)["number"] for each in payloads]


def check_rows(rows: Sequence[dict[str, Any]], numbers: Sequence[int], first: int = 0) -> None:
    """The law: nothing lost, nothing repeated, every row what was published.

    `rows` may come in any order; offsets run from `first` and the numbers were published in order.
    """
    places = [(row["topic"], row["partition"], row["offset"]) for row in rows]
    assert len(set(places)) == len(places), "a row came twice"
    assert len(rows) == len(numbers), f"{len(rows)} rows, {len(numbers)} were published"
    for number, row in zip(numbers, sorted(rows, key=lambda row: row["offset"]), strict=True):
        assert row["offset"] == first
        assert bytes(row["payload"]) == payload(number)
        assert row["routing_key"] == (f"key-{number % 7}" if number % 3 else None)
        assert dict(row["attributes"] or {}) == ({"n": str(number)} if number % 2 else {})
        first += 1


def small_broker(**settings: Any) -> Broker:
    """A broker whose segments are small and soon sealed."""
    return Broker(settings={**SMALL_SEGMENTS, **settings})


def create_partitions(broker: Broker, topic: str, count: int) -> None:
    asyncio.run(_administer(broker, lambda client: client.create_partitioned(topic, count)))


def delete_topic(broker: Broker, topic: str) -> None:
    asyncio.run(_administer(broker, lambda client: client.delete_topic(topic)))


async def _administer(broker: Broker, work: Callable[[RawClient], Awaitable[object]]) -> None:
    client = RawClient(broker.url, broker.admin_url)
    try:
        await work(client)
    finally:
        await client.close()
