"""The bare protocol as a load, over our own channel, in a process of its own.

    python -m benchmarks.raw_client publish|end_to_end|latency URL JSON

Prints one JSON object with what it measured. Latencies are measured from the moment a message was
due, so a broker that stalls cannot hide it.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable

from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.http2.channel import Http2Channel

TOPIC = "/default/raw"


class Publisher:
    def __init__(self, channel: Http2Channel, url: str, size: int) -> None:
        self._channel = channel
        self._url = url
        self._size = size
        self._request = b""

    async def create(self) -> None:
        request = api.ProducerRequest(
            request_id=1, producer_name="raw", topic_name=TOPIC, dispatch_strategy=1
        )
        reply = await services.invoke(self._channel, services.CREATE_PRODUCER, request)
        message_id = api.MsgID(
            producer_id=reply.producer_id, topic_name=TOPIC, broker_addr=self._url
        )
        self._request = api.StreamMessage(
            request_id=1,
            msg_id=message_id,
            payload=bytes(self._size),
            publish_time=int(time.time() * 1000),
            producer_name="raw",
        ).SerializeToString()

    async def send(self) -> None:
        await self._channel.unary(services.SEND_MESSAGE.path, self._request)

    async def send_many(self, count: int, window: int) -> None:
        remaining = iter(range(count))

        async def worker() -> None:
            for _ in remaining:
                await self.send()

        await asyncio.gather(*(worker() for _ in range(window)))


async def publish(url: str, count: int, window: int, size: int) -> dict[str, float]:
    channel = Http2Channel(url)
    publisher = Publisher(channel, url, size)
    await publisher.create()
    await publisher.send_many(window * 4, window)
    started = time.perf_counter()
    await publisher.send_many(count, window)
    rate = count / (time.perf_counter() - started)
    await channel.close()
    return {"rate": rate}


async def _subscribe(channel: Http2Channel) -> int:
    request = api.ConsumerRequest(
        request_id=1,
        topic_name=TOPIC,
        consumer_name="raw",
        subscription="raw",
        subscription_type=0,
    )
    reply = await services.invoke(channel, services.SUBSCRIBE, request)
    return reply.consumer_id


async def _receive(
    channel: Http2Channel, consumer_id: int, count: int, received: Callable[[], None]
) -> None:
    """Take messages and ack them without waiting for the answers."""
    request = api.ReceiveRequest(request_id=1, consumer_id=consumer_id).SerializeToString()
    acks: set[asyncio.Task[bytes]] = set()
    async for data in channel.stream(services.RECEIVE_MESSAGES.path, request):
        message_id = api.StreamMessage.FromString(data).msg_id
        ack = api.AckRequest(msg_id=message_id, subscription_name="raw").SerializeToString()
        task = asyncio.create_task(channel.unary(services.ACK.path, ack))
        acks.add(task)
        task.add_done_callback(acks.discard)
        received()
        count -= 1
        if not count:
            break
    await asyncio.gather(*acks)


async def end_to_end(url: str, count: int, window: int, size: int) -> dict[str, float]:
    sending, receiving = Http2Channel(url), Http2Channel(url)
    publisher = Publisher(sending, url, size)
    await publisher.create()
    consumer_id = await _subscribe(receiving)
    consuming = asyncio.create_task(_receive(receiving, consumer_id, count, lambda: None))
    started = time.perf_counter()
    await publisher.send_many(count, window)
    await consuming
    rate = count / (time.perf_counter() - started)
    await sending.close()
    await receiving.close()
    return {"rate": rate}


async def latency(url: str, rate: int, seconds: int, size: int) -> dict[str, float]:
    """Publish at a fixed rate, whatever the broker does; acks and deliveries are timed."""
    sending, receiving = Http2Channel(url), Http2Channel(url)
    publisher = Publisher(sending, url, size)
    await publisher.create()
    consumer_id = await _subscribe(receiving)
    count = rate * seconds
    due = [0.0] * count
    arrived: list[float] = []
    acked: list[float] = []
    consuming = asyncio.create_task(
        _receive(receiving, consumer_id, count, lambda: arrived.append(time.perf_counter()))
    )
    start = time.perf_counter() + 0.2

    async def one(number: int) -> None:
        await publisher.send()
        acked.append(time.perf_counter() - due[number])

    tasks = []
    for number in range(count):
        due[number] = start + number / rate
        delay = due[number] - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        tasks.append(asyncio.create_task(one(number)))
    await asyncio.gather(*tasks)
    await consuming
    ends = sorted(there - then for there, then in zip(arrived, due, strict=True))
    acked.sort()
    await sending.close()
    await receiving.close()
    return {
        "ack_p50_ms": acked[count // 2] * 1000,
        "ack_p99_ms": acked[count * 99 // 100] * 1000,
        "end_to_end_p50_ms": ends[count // 2] * 1000,
        "end_to_end_p99_ms": ends[count * 99 // 100] * 1000,
    }


async def main(name: str, url: str, arguments: dict[str, int]) -> None:
    run = {"publish": publish, "end_to_end": end_to_end, "latency": latency}[name]
    print(json.dumps(await run(url, **arguments)))


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
