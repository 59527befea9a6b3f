"""What the published danube-client does against a broker, in a process of its own.

    python -m tests.e2e.wheel_scenarios NAME URL [JSON]

Prints one JSON object: what was sent and what was received. It judges nothing; the tests do.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from danube import DanubeClient, DanubeClientBuilder, DispatchStrategy, SubType
from danube.consumer import Consumer
from danube.producer import Producer

RECEIVE_SECONDS_MAX = 30.0
QUIET_SECONDS = 0.7

KINDS = {
    "Exclusive": SubType.EXCLUSIVE,
    "Shared": SubType.SHARED,
    "Failover": SubType.FAILOVER,
    "KeyShared": SubType.KEY_SHARED,
}


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


async def new_producer(
    client: DanubeClient, topic: str, *, reliable: bool, partitions: int = 0, name: str = "p"
) -> Producer:
    strategy = DispatchStrategy.RELIABLE if reliable else DispatchStrategy.NON_RELIABLE
    builder = client.new_producer().with_topic(topic).with_name(name)
    builder = builder.with_dispatch_strategy(strategy)
    if partitions:
        builder = builder.with_partitions(partitions)
    producer = builder.build()
    await producer.create()
    return producer


async def new_consumer(
    client: DanubeClient,
    topic: str,
    subscription: str,
    kind: str,
    name: str,
    filters: list[str] | None = None,
) -> tuple[Consumer, asyncio.Queue[Any]]:
    builder = client.new_consumer().with_topic(topic).with_consumer_name(name)
    builder = builder.with_subscription(subscription).with_subscription_type(KINDS[kind])
    if filters:
        builder = builder.with_key_filters(filters)
    consumer = builder.build()
    await consumer.subscribe()
    return consumer, await consumer.receive()


def facts(message: Any) -> dict[str, Any]:
    return {
        "payload": message.payload.decode(errors="replace")[:64],
        "size": len(message.payload),
        "offset": message.msg_id.topic_offset,
        "topic": message.msg_id.topic_name,
        "key": message.routing_key,
        "attributes": dict(message.attributes),
    }


async def receive(
    consumer: Consumer, queue: asyncio.Queue[Any], count: int, into: list[dict[str, Any]]
) -> None:
    """Take and ack `count` messages, then look whether more come than should."""
    for _ in range(count):
        message = await asyncio.wait_for(queue.get(), RECEIVE_SECONDS_MAX)
        into.append(facts(message))
        await consumer.ack(message)
    await receive_rest(consumer, queue, into)


async def receive_rest(
    consumer: Consumer, queue: asyncio.Queue[Any], into: list[dict[str, Any]]
) -> None:
    """Take and ack whatever comes until it has been quiet for a while."""
    while True:
        try:
            message = await asyncio.wait_for(queue.get(), QUIET_SECONDS)
        except TimeoutError:
            return
        into.append(facts(message))
        await consumer.ack(message)


async def exchange(client: DanubeClient, kind: str, reliable: bool, count: int) -> None:
    """One producer, one consumer."""
    topic = f"/default/exchange-{kind}-{reliable}"
    producer = await new_producer(client, topic, reliable=reliable)
    consumer, queue = await new_consumer(client, topic, "sub", kind, "c")
    for number in range(count):
        await producer.send(f"m{number}".encode(), {"n": str(number)})
    received: list[dict[str, Any]] = []
    await receive(consumer, queue, count, received)
    say(received=received)


async def fan_out(client: DanubeClient, subscriptions: int, count: int, reliable: bool) -> None:
    """Several exclusive subscriptions on one topic."""
    topic = f"/default/fan-out-{reliable}"
    producer = await new_producer(client, topic, reliable=reliable)
    consumers = [
        await new_consumer(client, topic, f"sub{i}", "Exclusive", f"c{i}")
        for i in range(subscriptions)
    ]
    for number in range(count):
        await producer.send(f"m{number}".encode())
    received: list[list[dict[str, Any]]] = [[] for _ in consumers]
    await asyncio.gather(
        *(receive(c, q, count, into) for (c, q), into in zip(consumers, received, strict=True))
    )
    say(received=received)


async def share(client: DanubeClient, consumers: int, count: int, reliable: bool) -> None:
    """Several consumers on one shared subscription."""
    topic = f"/default/share-{reliable}"
    producer = await new_producer(client, topic, reliable=reliable)
    members = [
        await new_consumer(client, topic, "sub", "Shared", f"c{i}") for i in range(consumers)
    ]
    for number in range(count):
        await producer.send(f"m{number}".encode())
    received: list[list[dict[str, Any]]] = [[] for _ in members]
    each = count // consumers
    await asyncio.gather(
        *(receive(c, q, each, into) for (c, q), into in zip(members, received, strict=True))
    )
    say(received=received)


async def partitions(client: DanubeClient, count: int, reliable: bool) -> None:
    """A topic of three partitions."""
    topic = f"/default/partitioned-{reliable}"
    producer = await new_producer(client, topic, reliable=reliable, partitions=3)
    consumer, queue = await new_consumer(client, topic, "sub", "Exclusive", "c")
    for number in range(count):
        await producer.send(f"m{number}".encode())
    received: list[dict[str, Any]] = []
    await receive(consumer, queue, count, received)
    say(received=received)


async def large(client: DanubeClient, size: int, count: int, reliable: bool) -> None:
    """Payloads whose every byte matters."""
    topic = f"/default/large-{reliable}"
    producer = await new_producer(client, topic, reliable=reliable)
    consumer, queue = await new_consumer(client, topic, "sub", "Exclusive", "c")
    payloads = [bytes((i * 7 + j) % 251 for j in range(size)) for i in range(count)]
    for payload in payloads:
        await producer.send(payload)
    intact = 0
    for expected in payloads:
        message = await asyncio.wait_for(queue.get(), RECEIVE_SECONDS_MAX)
        intact += message.payload == expected
        await consumer.ack(message)
    say(intact=intact)


async def nack(client: DanubeClient) -> None:
    """A refused message comes back."""
    topic = "/default/nacked"
    producer = await new_producer(client, topic, reliable=True)
    consumer, queue = await new_consumer(client, topic, "sub", "Exclusive", "c")
    for number in range(3):
        await producer.send(f"m{number}".encode())
    received = []
    first = await asyncio.wait_for(queue.get(), RECEIVE_SECONDS_MAX)
    received.append(facts(first))
    await consumer.nack(first, delay_ms=0, reason="not now")
    await receive(consumer, queue, 3, received)
    say(received=received)


async def keys(client: DanubeClient, key_count: int, per_key: int, reliable: bool) -> None:
    """Two consumers share the keys."""
    topic = f"/default/keys-{reliable}"
    producer = await new_producer(client, topic, reliable=reliable)
    members = [await new_consumer(client, topic, "sub", "KeyShared", f"c{i}") for i in range(2)]
    received: list[list[dict[str, Any]]] = [[] for _ in members]

    async def all_of(consumer: Consumer, queue: Any, into: list[dict[str, Any]]) -> None:
        await receive_rest(consumer, queue, into)

    tasks = [
        asyncio.create_task(all_of(c, q, into))
        for (c, q), into in zip(members, received, strict=True)
    ]
    for number in range(per_key):
        for key in range(key_count):
            await producer.send_with_key(f"k{key}-{number}".encode(), None, f"k{key}")
    await asyncio.gather(*tasks)
    say(received=received)


async def filters(client: DanubeClient, reliable: bool) -> None:
    """Consumers with key filters."""
    topic = f"/default/filters-{reliable}"
    producer = await new_producer(client, topic, reliable=reliable)
    members = [
        await new_consumer(client, topic, "sub", "KeyShared", "eu", ["eu-*"]),
        await new_consumer(client, topic, "sub", "KeyShared", "us", ["us-?"]),
    ]
    received: list[list[dict[str, Any]]] = [[] for _ in members]
    tasks = [
        asyncio.create_task(receive_rest(c, q, into))
        for (c, q), into in zip(members, received, strict=True)
    ]
    for number in range(5):
        for key in ("eu-1", "eu-22", "us-1", "us-22", "asia"):
            await producer.send_with_key(f"{key}:{number}".encode(), None, key)
    await asyncio.gather(*tasks)
    say(received=received)


async def carry_on(client: DanubeClient, count: int, topic: str, pause: float = 0.0) -> None:
    """Send and receive steadily, whatever happens to the broker meanwhile."""
    producer = await new_producer(client, topic, reliable=True)
    consumer, queue = await new_consumer(client, topic, "sub", "Exclusive", "c")
    received: list[dict[str, Any]] = []
    acknowledged: list[str] = []
    failed: list[str] = []

    async def consume() -> None:
        while len({each["payload"] for each in received}) < count:
            message = await asyncio.wait_for(queue.get(), RECEIVE_SECONDS_MAX)
            received.append(facts(message))
            try:
                await consumer.ack(message)
            except (
                Exception
            ) as error:  # The client does not repeat acks; the broker delivers again.
                say(event="ack failed", error=str(error)[:200])

    consuming = asyncio.create_task(consume())
    for number in range(count):
        payload = f"m{number}"
        try:
            await producer.send(payload.encode())
            acknowledged.append(payload)
        except Exception as error:
            failed.append(f"{payload}: {error}"[:200])
            received_enough = {"payload": payload}
            received.append(received_enough | {"offset": -1, "lost": True})
        say(event="sent", number=number)
        if pause:
            await asyncio.sleep(pause)
    try:
        await consuming
    except TimeoutError:
        say(event="timeout")
    say(received=received, acknowledged=acknowledged, failed=failed)


SCENARIOS: dict[str, Callable[..., Awaitable[None]]] = {
    each.__name__: each
    for each in (exchange, fan_out, share, partitions, large, nack, keys, filters, carry_on)
}


async def main(name: str, url: str, arguments: dict[str, Any]) -> None:
    client = await DanubeClientBuilder().service_url(url).build()
    await SCENARIOS[name](client, **arguments)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads((sys.argv[3:] or ["{}"])[0])))
