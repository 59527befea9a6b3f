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
from danube.schema import CompatibilityMode, SchemaType

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
        "schema_id": message.schema_id,
        "schema_version": message.schema_version,
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


async def drain(client: DanubeClient, topic: str, subscription: str, count: int) -> None:
    """One consumer of a subscription that others made."""
    consumer, queue = await new_consumer(client, topic, subscription, "Shared", "wheel")
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


async def too_long(client: DanubeClient, kind: str, size: int, seconds: float) -> None:
    """A message that this client cannot receive lies between those it can."""
    topic = f"/default/too-long-{kind}"
    producer = await new_producer(client, topic, reliable=True)
    consumer, queue = await new_consumer(client, topic, "sub", kind, "c")
    await producer.send(b"before", {})
    await producer.send(b"x" * size, {})
    await producer.send(b"behind", {})
    received: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await queue.get()
                await consumer.ack(message)
                received.append(facts(message))
    except TimeoutError:
        say(received=received)


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


async def late_hands(client: DanubeClient, topic: str) -> None:
    """Hold messages while the names they came by are made anew, and ack them then.

    What the new subscription delivers meanwhile is received and left unacked.
    """
    producer = await new_producer(client, topic, reliable=True)
    consumer, queue = await new_consumer(client, topic, "sub", "Shared", "old")
    for number in range(3):
        await producer.send(f"old{number}".encode())
    held = [await asyncio.wait_for(queue.get(), RECEIVE_SECONDS_MAX) for _ in range(3)]
    await consumer.close()
    say(held=[facts(each) for each in held])
    publishes = await asyncio.to_thread(sys.stdin.readline)
    other, other_queue = await new_consumer(client, topic, "sub", "Shared", "new")
    if publishes.strip() == "publish":
        anew = await new_producer(client, topic, reliable=True, name="q")
        for number in range(3):
            await anew.send(f"new{number}".encode())
    got = [await asyncio.wait_for(other_queue.get(), RECEIVE_SECONDS_MAX) for _ in range(3)]
    for message in held:
        # The consumer of before is closed, and its connection is not: late acks go out.
        await consumer.ack(message)
    await other.close()
    say(got=[facts(each) for each in got])


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


async def schemas(client: DanubeClient, order: str, with_note: str, renumbered: str) -> None:
    """Register, evolve and refuse; produce with every kind of reference; validate."""
    topic, subject = "/default/with-schema", "orders"
    registry = client.schema()

    async def register(definition: str) -> str:
        builder = registry.register_schema(subject).with_type(SchemaType.JSON_SCHEMA)
        return await outcome(builder.with_schema_data(definition.encode()).execute())

    said: dict[str, Any] = {"registered": [await register(order), await register(with_note)]}
    said["again"] = await register(order)
    said["incompatible"] = await register(renumbered)
    said["versions"] = await registry.list_versions(subject)
    latest = await registry.get_latest_schema(subject)
    said["latest"] = [latest.schema_id, latest.version, latest.schema_definition.decode()]
    pinned = await registry.get_schema_version(latest.schema_id, 1)
    said["pinned"] = [pinned.version, pinned.schema_definition.decode()]
    said["check"] = await registry.check_compatibility(
        subject, renumbered.encode(), SchemaType.JSON_SCHEMA
    )
    producers = {}
    for name, reference in REFERENCES.items():
        builder = client.new_producer().with_topic(topic).with_name(name)
        builder = builder.with_dispatch_strategy(DispatchStrategy.RELIABLE)
        producer = reference(builder, subject).build()
        said[f"created {name}"] = await outcome(producer.create())
        producers[name] = producer
    said["configured"] = await registry.configure_topic_schema(topic, subject, "enforce", True)
    consumer, queue = await new_consumer(client, topic, "sub", "Exclusive", "c")
    for name in ("latest", "pinned", "minimum", "none"):
        said[f"sent {name}"] = await outcome(producers[name].send(b'{"id": 1}'))
    said["sent invalid"] = await outcome(producers["latest"].send(b'{"id": "x"}'))
    received: list[dict[str, Any]] = []
    await receive(consumer, queue, 3, received)
    said["received"] = [[each["schema_id"], each["schema_version"]] for each in received]
    said["mode"] = (await registry.set_compatibility_mode(subject, CompatibilityMode.NONE))[0]
    said["changed"] = await register(renumbered)
    said["deleted"] = await outcome(registry.delete_schema_version(subject, 1))
    say(**said)


async def schema_corners(client: DanubeClient, first: str, second: str, topic: str) -> None:
    """Change a constant; delete a version that a topic uses, and the only one of a subject."""
    registry = client.schema()

    async def register(subject: str, definition: str) -> str:
        builder = registry.register_schema(subject).with_type(SchemaType.JSON_SCHEMA)
        return await outcome(builder.with_schema_data(definition.encode()).execute())

    await register("constant", first)
    said: dict[str, Any] = {"changed": await register("constant", second)}
    producer = client.new_producer().with_topic(topic).with_name("p")
    await producer.with_schema_subject("constant").build().create()
    said["in use"] = await outcome(registry.delete_schema_version("constant", 1))
    await register("short-lived", first)
    said["deleted"] = await registry.delete_schema_version("short-lived", 1)
    said["versions"] = await registry.list_versions("short-lived")
    await register("short-lived", first)
    said["versions again"] = await registry.list_versions("short-lived")
    say(**said)


REFERENCES: dict[str, Callable[..., Any]] = {
    "none": lambda builder, subject: builder,
    "latest": lambda builder, subject: builder.with_schema_subject(subject),
    "pinned": lambda builder, subject: builder.with_schema_version(subject, 1),
    "minimum": lambda builder, subject: builder.with_schema_min_version(subject, 2),
    "too high": lambda builder, subject: builder.with_schema_version(subject, 9),
    "unknown": lambda builder, subject: builder.with_schema_subject("nothing"),
}


async def outcome(work: Awaitable[Any]) -> str:
    """Return what came of it, or the status and the words it was refused with."""
    try:
        return str(await work)
    except Exception as error:
        cause = error.__cause__ or error
        code = getattr(cause, "code", None)
        return f"{code().name if callable(code) else type(error).__name__}: {error}"


SCENARIOS: dict[str, Callable[..., Awaitable[None]]] = {
    each.__name__: each
    for each in (
        exchange,
        drain,
        fan_out,
        share,
        partitions,
        large,
        too_long,
        nack,
        late_hands,
        keys,
        filters,
        schemas,
        schema_corners,
        carry_on,
    )
}


async def main(name: str, url: str, arguments: dict[str, Any]) -> None:
    client = await DanubeClientBuilder().service_url(url).build()
    await SCENARIOS[name](client, **arguments)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads((sys.argv[3:] or ["{}"])[0])))
