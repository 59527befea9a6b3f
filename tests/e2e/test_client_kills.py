"""The gathering producer and the batch consumer while their broker is killed under load."""

import asyncio
from collections import deque
from contextlib import suppress
from pathlib import Path

import pytest

import pydanube
from pydanube.client.client import grpcio_channel
from pydanube.runtime.randomness import SeededRandomness
from pydanube.wire.http2.channel import Http2Channel
from tests.support.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TOPIC = "/default/orders"
PRODUCERS = 3
BURST = 40
BURSTS_UNDER_WAY = 8
KILLS = 2
CHANNELS = {"http2": Http2Channel, "grpcio": grpcio_channel}


class Load:
    """Producers that send bursts, and one consumer that acks up to what it has received."""

    def __init__(self, client: pydanube.Client) -> None:
        self._client = client
        self.acknowledged: dict[bytes, int | None] = {}
        self.unsure: set[bytes] = set()
        self.received: dict[int, bytes] = {}
        self.acked_until = 0
        self.last_ack = 0
        """Up to where the last ack went, answered or not."""
        self.first_left: int | None = None
        """The lowest offset that a later consumer is delivered."""
        self.over = asyncio.Event()

    async def produce(self, number: int) -> None:
        """Send one burst after the other, each in one turn, several of them under way at once."""
        under_way: deque[tuple[list[bytes], list[asyncio.Future[pydanube.SentMessage]]]] = deque()
        sequence = 0
        async with self._client.producer(TOPIC, name=f"p{number}") as producer:
            while not self.over.is_set():
                payloads = [b"%d-%06d" % (number, sequence + each) for each in range(BURST)]
                sequence += BURST
                under_way.append((payloads, [producer.send_nowait(each) for each in payloads]))
                await asyncio.sleep(0.002)
                if len(under_way) == BURSTS_UNDER_WAY:
                    await self._note(*under_way.popleft())
            while under_way:
                await self._note(*under_way.popleft())

    async def _note(
        self, payloads: list[bytes], answers: "list[asyncio.Future[pydanube.SentMessage]]"
    ) -> None:
        results = await asyncio.gather(*answers, return_exceptions=True)
        for payload, result in zip(payloads, results, strict=True):
            if isinstance(result, pydanube.SentMessage):
                self.acknowledged[payload] = result.offset
            else:
                assert isinstance(result, pydanube.Unavailable), result
                self.unsure.add(payload)

    async def consume(self) -> None:
        """Ack every other batch, together with the one before it."""
        async with self._client.consumer(
            TOPIC, "s", name="c", subscription_type="Exclusive", start_position="earliest"
        ) as consumer:
            turn = 0
            async for batch in consumer.batches():
                offsets = range(batch.offset, batch.end)
                self.received.update(zip(offsets, batch.payloads(), strict=True))
                turn += 1
                if turn % 2:
                    continue
                self.last_ack = batch.end
                try:
                    await consumer.ack_until(batch)
                except pydanube.Unavailable:
                    continue
                self.acked_until = max(self.acked_until, batch.end)

    async def look_what_is_left(self) -> None:
        """Take over, once the broker was killed for the last time."""
        async with self._client.consumer(
            TOPIC, "s", name="c", subscription_type="Exclusive"
        ) as consumer:
            with suppress(TimeoutError):
                self.first_left = (await consumer.receive(seconds_max=2)).offset


@pytest.mark.parametrize("engine", ["http2", "grpcio"])
async def test_nothing_acknowledged_is_lost_doubled_or_out_of_order(
    tmp_path: Path, engine: str
) -> None:
    chance = SeededRandomness(f"client kills {engine}")
    with BrokerProcess(tmp_path / "data", engine=engine) as broker:
        async with pydanube.connect(broker.url, open_channel=CHANNELS[engine]) as client:
            load = Load(client)
            await (await client.producer(TOPIC)).close()
            producing = [asyncio.create_task(load.produce(n)) for n in range(PRODUCERS)]
            consuming = asyncio.create_task(load.consume())
            for _ in range(KILLS):
                before = len(load.acknowledged)
                async with asyncio.timeout(60):
                    while len(load.acknowledged) < before + 5 * BURST:
                        await asyncio.sleep(0.01)
                await asyncio.sleep(chance.uniform(0.0, 0.3))
                assert await asyncio.to_thread(broker.kill) == -9
                await asyncio.to_thread(broker.start)
            load.over.set()
            async with asyncio.timeout(60):
                await asyncio.gather(*producing)
            table = await client.reader(TOPIC).to_arrow()
            stored = table["payload"].to_pylist()
            async with asyncio.timeout(60):
                while len(load.received) < len(stored):
                    if consuming.done():
                        consuming.result()
                    await asyncio.sleep(0.05)
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
            assert await asyncio.to_thread(broker.kill) == -9
            await asyncio.to_thread(broker.start)
            await load.look_what_is_left()
        assert broker.terminate() == 0, broker.log_tail()
    judge(load, stored)


def judge(load: Load, stored: list[bytes]) -> None:
    print(len(load.acknowledged), "acknowledged,", len(load.unsure), "unsure,", load.acked_until)
    assert load.acknowledged.keys() <= set(stored), "acknowledged, and lost"
    # Where the first answer was lost, the second need not tell the place.
    told = {p: at for p, at in load.acknowledged.items() if at is not None}
    assert [p for p, at in told.items() if stored[at] != p] == [], "not where it was said to be"
    assert len(set(stored)) == len(stored), "stored twice"
    assert set(stored) <= load.acknowledged.keys() | load.unsure, "stored, and never sent"
    for number in range(PRODUCERS):
        own = [payload for payload in stored if payload.startswith(b"%d-" % number)]
        assert own == sorted(own), f"producer {number} out of order"
    assert load.received == dict(enumerate(stored)), "stored, and not delivered so"
    assert load.acked_until > 0
    left = len(stored) if load.first_left is None else load.first_left
    # The consumer may have been stopped, or the broker killed, before an ack was answered.
    assert left in (load.acked_until, load.last_ack), "acked and delivered again, or the reverse"
    assert len(load.acknowledged) >= KILLS * 5 * BURST
