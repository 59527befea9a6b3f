"""Flight against a real broker process: kill -9, and callers that stop reading."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.flight_peer import PAYLOADS, FlightPeer, payload_batch

TOPIC = "/default/orders"
MIB = 1024 * 1024

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(params=["grpcio", "http2"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", engine=request.param) as running:
        yield running


@pytest.fixture
def connect(broker: BrokerProcess) -> Iterator[Callable[[], FlightPeer]]:
    connected: list[FlightPeer] = []

    def peer() -> FlightPeer:
        connected.append(FlightPeer(broker.client_port))
        return connected[-1]

    yield peer
    for each in connected:
        each.close()


class Publisher(threading.Thread):
    """Publishes batches of ten under one name until the broker is gone."""

    def __init__(self, peer: FlightPeer, name: str) -> None:
        super().__init__()
        self.name = name
        self.put = peer.put(TOPIC, PAYLOADS, producer=name)
        self.applied: dict[int, list[bytes]] = {}
        self.sent: list[list[bytes]] = []

    def run(self) -> None:
        answering = threading.Thread(target=self._answers)
        answering.start()
        try:
            while True:
                while len(self.sent) - len(self.applied) > 100 and answering.is_alive():
                    time.sleep(0.001)
                number = len(self.sent)
                rows = [f"{self.name}-{number}-{row}".encode() for row in range(10)]
                self.sent.append(rows)
                self.put.write(payload_batch(rows), first_sequence=10 * number)
        except (pa.ArrowException, flight.FlightError, OSError):
            pass
        answering.join()

    def _answers(self) -> None:
        number = 0
        # A connection that breaks ends the answers, or fails while it is read.
        with suppress(pa.ArrowException, flight.FlightError, OSError):
            while (result := self.put.result()) is not None:
                self.applied[result["offset"]] = self.sent[number]
                number += 1


def test_what_was_answered_is_there_after_kill_9_and_a_repeat_stores_nothing_twice(broker, connect):
    publishers = [Publisher(connect(), name) for name in ("anne", "bert")]
    for publisher in publishers:
        publisher.start()
    while any(len(publisher.applied) < 50 for publisher in publishers):
        time.sleep(0.01)
    broker.kill()
    for publisher in publishers:
        publisher.join()
    broker.start()

    peer = connect()
    stored = dict(enumerate(peer.payloads(TOPIC)))
    for publisher in publishers:
        for offset, rows in publisher.applied.items():
            assert [stored.get(offset + row) for row in range(10)] == rows, "an answer was broken"

    for publisher in publishers:
        put = connect().put(TOPIC, producer=publisher.name)
        for number, rows in enumerate(publisher.sent):
            put.write(payload_batch(rows), first_sequence=10 * number)
            assert put.result() is not None
        put.close()
    payloads = peer.payloads(TOPIC)
    expected = [row for publisher in publishers for rows in publisher.sent for row in rows]
    assert sorted(payloads) == sorted(expected)


def test_durable_acks_of_a_consumer_survive_kill_9(broker, connect):
    peer = connect()
    peer.publish(TOPIC, payload_batch([b"%d" % number for number in range(10)]))
    consumer = peer.subscribe(TOPIC, "s", "c", credit=10, start_position="earliest")
    consumer.take(10)
    consumer.ack((0, 3), (6, 8))
    broker.kill()
    broker.start()
    consumer = connect().subscribe(TOPIC, "s", "c", credit=10)
    assert sorted(consumer.offsets(5)) == [3, 4, 5, 8, 9]
    cursor = connect().act("cursor.get", topic=TOPIC, subscription="s")
    assert cursor["position"] == 3


def rss_bytes(broker: BrokerProcess) -> int:
    return psutil.Process(broker.pid).memory_info().rss


@pytest.mark.parametrize("how", ["DoGet", "DoExchange"])
def test_callers_that_stop_reading_cost_the_broker_little(broker, connect, how):
    callers, size_mib = 12, 40
    peer = connect()
    peer.publish(TOPIC, *[payload_batch([bytes(64 * 1024)] * 16) for _ in range(size_mib)])
    stalled: list[object] = []
    before = rss_bytes(broker)
    for number in range(callers):
        if how == "DoGet":
            reader = connect().client.do_get(flight.Ticket(TOPIC.encode()))
            assert reader.read_chunk().data.num_rows == 16
            stalled.append(reader)
        else:
            consumer = connect().subscribe(
                TOPIC, f"s{number}", "c", credit=100_000, start_position="earliest"
            )
            assert consumer.next().batch.num_rows == 16
            stalled.append(consumer)
    largest = before
    for _ in range(20):
        time.sleep(0.1)
        largest = max(largest, rss_bytes(broker))
    grown = (largest - before) / MIB
    assert grown < callers * size_mib / 3, f"the broker has grown by {grown:.0f} MiB"
    assert len(peer.payloads({"topic": TOPIC, "to": 16})) == 16, "others are served meanwhile"
    for each in stalled:
        each.cancel()
