"""A stock grpc.aio client that publishes at a steady rate, in a process of its own.

    python -m benchmarks.steady_client TARGET RATE

Each line on its input says for how many seconds; it answers with one JSON object. Time is counted
from the moment a call was due, so that a stall is not hidden by the calls that wait for it.
"""

import asyncio
import gc
import json
import sys
import time

import grpc.aio

from benchmarks.stock_client import OPTIONS, create_producer
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api

TOPIC = "/default/steady"
CALL_SECONDS_MAX = 30.0


class SteadyClient:
    def __init__(self, channel: grpc.aio.Channel, producer_id: int) -> None:
        self._send = channel.unary_unary(services.SEND_MESSAGE.path)
        self._request = api.StreamMessage(
            request_id=1,
            msg_id=api.MsgID(producer_id=producer_id, topic_name=TOPIC),
            payload=bytes(1024),
            publish_time=int(time.time() * 1000),
            producer_name="stock",
        ).SerializeToString()

    async def measure(self, seconds: float, rate: float) -> dict[str, float]:
        took: list[float] = []
        count = int(seconds * rate)
        start = time.perf_counter()

        async def one(due: float) -> None:
            await self._send(self._request, timeout=CALL_SECONDS_MAX)
            took.append(time.perf_counter() - due)

        calls = []
        gc.disable()  # Its own pauses are none of the broker's.
        for number in range(count):
            due = start + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            calls.append(asyncio.create_task(one(due)))
        await asyncio.gather(*calls)
        gc.enable()
        took.sort()
        return {
            "p50_ms": took[count // 2] * 1000,
            "p99_ms": took[count * 99 // 100] * 1000,
            "max_ms": took[-1] * 1000,
        }


async def main(target: str, rate: float) -> None:
    async with grpc.aio.insecure_channel(target, options=OPTIONS) as channel:
        client = SteadyClient(channel, await create_producer(channel, TOPIC, reliable=False))
        await client.measure(0.5, rate)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await client.measure(float(line), rate)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
