"""Flight over history: what lies in segments is planned by them and read like everything else."""

import asyncio
import json
from pathlib import Path

from tests.support.flight_peer import FlightPeer, call, payload_batch
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"


async def test_history_is_planned_by_segments_and_read_exactly(tmp_path: Path, engine: str):
    settings = {
        "storage.segments.seal_bytes": 64 * 1024,
        "storage.tail_cache_bytes_max": 0,
        "storage.segments.read_cache_bytes_max": 0,
    }
    broker = RunningBroker(tmp_path / "data", settings, engine=engine)
    await broker.start()
    peer = FlightPeer(broker.server.client_port)
    payloads = [b"%06d" % number * 100 for number in range(1_000)]
    batches = [payload_batch(payloads[low : low + 50]) for low in range(0, 1_000, 50)]
    await call(peer.publish, TOPIC, *batches)

    async with asyncio.timeout(20):
        while True:
            info = await call(peer.plan, topic=TOPIC)
            notes = [json.loads(endpoint.app_metadata) for endpoint in info.endpoints]
            segments = {each["segment"] for each in notes if "segment" in each}
            if len(segments) >= 3:
                break
            await asyncio.sleep(0.05)
    assert info.total_records == 1_000
    assert [each["from"] for each in notes[1:]] == [each["to"] for each in notes[:-1]]
    found: list[bytes] = []
    for endpoint in info.endpoints:
        found += await call(peer.payloads, endpoint.ticket)
    assert found == payloads

    middle = {"topic": TOPIC, "from": 33, "to": 777}
    assert await call(peer.payloads, middle) == payloads[33:777]
    consumer = await call(peer.subscribe, TOPIC, "s", "c", credit=1_000, start_position="offset:40")
    assert await call(consumer.payloads, 960) == payloads[40:]
    await call(consumer.leave)
    peer.close()
    await broker.close()
