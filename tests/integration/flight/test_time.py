"""Batches whose messages wait, expire or come again: the stream splits them as it must."""

import pyarrow as pa
import pytest

from tests.support.flight_peer import FlightPeer, call, payload_batch
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"


def timed(now_ms: int, **attributes: dict[int, str]) -> pa.RecordBatch:
    """Ten messages of which some have attributes: names with _ for -, then values by row."""
    rows: list[list[tuple[str, str]]] = [[] for _ in range(10)]
    for name, values in attributes.items():
        for row, value in values.items():
            rows[row].append((name.replace("_", "-"), value))
    return payload_batch(
        [b"%d" % row for row in range(10)],
        attributes=pa.array(rows, pa.map_(pa.utf8(), pa.utf8())),
        publish_time=pa.array([now_ms] * 10, pa.int64()),
    )


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover"])
async def test_a_batch_is_delivered_in_parts_as_its_messages_are_due(
    peer: FlightPeer, broker: RunningBroker, kind: str
) -> None:
    now = broker.clock.now_ms()
    batch = timed(
        now,
        x_deliver_at={3: str(now + 60_000)},
        x_deliver_after={7: "30000", 8: "30000"},
        x_ttl_ms={5: "0"},
    )
    await call(peer.publish, TOPIC, batch)
    consumer = await call(
        peer.subscribe, TOPIC, "s", "c", type=kind, start_position="earliest", credit=100
    )
    assert await call(consumer.payloads, 6) == [b"0", b"1", b"2", b"4", b"6", b"9"]
    await call(consumer.ack, (0, 10))  # It settles what was sent, and nothing that waits.
    broker.clock.advance(31)
    assert await call(consumer.payloads, 2) == [b"7", b"8"]
    await call(consumer.ack, (7, 9))
    broker.clock.advance(30)
    assert await call(consumer.payloads, 1) == [b"3"]
    await call(consumer.ack, (0, 10))
    assert broker.topics.get(TOPIC).subscriptions["s"].cursor == 10
    await call(consumer.leave)


async def test_what_is_not_sent_costs_no_credit(peer: FlightPeer, broker: RunningBroker) -> None:
    batch = timed(broker.clock.now_ms(), x_deliver_after=dict.fromkeys(range(8), "60000"))
    await call(peer.publish, TOPIC, batch)
    consumer = await call(
        peer.subscribe, TOPIC, "s", "c", type="exclusive", start_position="earliest", credit=2
    )
    assert await call(consumer.payloads, 2) == [b"8", b"9"]
    await call(consumer.ack, (8, 10))
    broker.clock.advance(61)
    await call(consumer.say, credit=8)
    assert await call(consumer.payloads, 8) == [b"%d" % row for row in range(8)]
    await call(consumer.leave)


async def test_a_time_that_means_nothing_refuses_the_batch(
    peer: FlightPeer, broker: RunningBroker
) -> None:
    batch = timed(broker.clock.now_ms(), x_deliver_at={4: "soon"})
    with pytest.raises(pa.ArrowException, match="x-deliver-at"):
        await call(peer.publish, TOPIC, batch)
    log = broker.topics.get(TOPIC).log
    assert log is not None
    assert log.durable_end == 0
