"""The published danube-client as a load, in a process of its own.

    python -m benchmarks.wheel_client publish|end_to_end|receive URL JSON

Prints one JSON object with what it measured.
"""

import asyncio
import json
import sys
import time
from typing import Any

from danube import DanubeClient, DanubeClientBuilder, DispatchStrategy, SubType


async def _producer(client: DanubeClient, topic: str) -> Any:
    builder = client.new_producer().with_topic(topic).with_name("bench")
    producer = builder.with_dispatch_strategy(DispatchStrategy.RELIABLE).build()
    await producer.create()
    return producer


async def _send(producer: Any, count: int, window: int, payload: bytes) -> None:
    slots = asyncio.Semaphore(window)

    async def one() -> None:
        await producer.send(payload)
        slots.release()

    tasks = set()
    for _ in range(count):
        await slots.acquire()
        task = asyncio.create_task(one())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


async def publish(client: DanubeClient, count: int, window: int, size: int) -> dict[str, float]:
    producer = await _producer(client, "/default/wheel-publish")
    await _send(producer, window * 4, window, bytes(size))
    started = time.perf_counter()
    await _send(producer, count, window, bytes(size))
    return {"rate": count / (time.perf_counter() - started)}


async def end_to_end(client: DanubeClient, count: int, window: int, size: int) -> dict[str, float]:
    topic = "/default/wheel-end-to-end"
    producer = await _producer(client, topic)
    builder = client.new_consumer().with_topic(topic).with_consumer_name("bench")
    consumer = builder.with_subscription("s").with_subscription_type(SubType.EXCLUSIVE).build()
    await consumer.subscribe()
    queue = await consumer.receive()

    async def receive() -> None:
        acks = set()
        for _ in range(count):
            message = await queue.get()
            task = asyncio.create_task(consumer.ack(message))
            acks.add(task)
            task.add_done_callback(acks.discard)
        await asyncio.gather(*acks)

    receiving = asyncio.create_task(receive())
    started = time.perf_counter()
    await _send(producer, count, window, bytes(size))
    await receiving
    return {"rate": count / (time.perf_counter() - started)}


async def receive(client: DanubeClient, topic: str, count: int, size: int) -> dict[str, float]:
    """Take a backlog; acks are not part of the measure."""
    builder = client.new_consumer().with_topic(topic).with_consumer_name("bench")
    consumer = builder.with_subscription("s").with_subscription_type(SubType.EXCLUSIVE).build()
    producer = await _producer(client, topic)
    await consumer.subscribe()
    await _send(producer, count, 64, bytes(size))
    started = time.perf_counter()
    queue = await consumer.receive()
    for _ in range(count):
        await queue.get()
    return {"seconds": time.perf_counter() - started}


async def main(name: str, url: str, arguments: dict[str, int]) -> None:
    client = await DanubeClientBuilder().service_url(url).build()
    run = {"publish": publish, "end_to_end": end_to_end, "receive": receive}[name]
    print(json.dumps(await run(client, **arguments)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
