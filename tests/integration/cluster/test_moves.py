"""Topics that change hands: nothing is lost or stored twice, and everybody finds them again."""

import asyncio
from functools import partial

import pyarrow as pa

from pydanube import connect
from pydanube.model.batch import SCHEMA
from pydanube.spark.sink.publishing import completed
from pydanube.wire.calls import StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.flight.blocking import BlockingFlight, Credentials
from pydanube.wire.flight.descriptors import BatchNumbers, PublishCommand, PutAnswer
from tests.support.broker_cluster import BrokerCluster

TOPIC = "/default/orders"


async def test_any_broker_tells_where_a_topic_is(cluster: BrokerCluster) -> None:
    async with connect(cluster.brokers[0].url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"x")
    owner = await cluster.owned(TOPIC)
    await cluster.until(
        lambda: all(
            each.clustering.directory.owner_of(TOPIC) == owner.id for each in cluster.brokers
        )
    )
    for broker in cluster.brokers:
        found = await cluster.client(broker).lookup(TOPIC)
        assert found.broker_url == owner.url
        redirected = found.response_type == api.TopicLookupResponse.Redirect
        assert redirected == (broker is not owner)
        assert await cluster.client(broker).partitions(TOPIC) == [TOPIC]


async def test_a_broker_that_does_not_serve_a_topic_sends_clients_on(
    cluster: BrokerCluster,
) -> None:
    await cluster.client(cluster.brokers[0]).status(
        services.CREATE_PRODUCER,
        api.ProducerRequest(
            producer_name="p", topic_name=TOPIC, dispatch_strategy=api.DispatchStrategy.Reliable
        ),
    )
    owner = await cluster.owned(TOPIC)
    other = next(broker for broker in cluster.brokers if broker is not owner)
    await cluster.until(lambda: other.clustering.directory.owner_of(TOPIC) == owner.id)
    request = api.ProducerRequest(
        producer_name="p", topic_name=TOPIC, dispatch_strategy=api.DispatchStrategy.Reliable
    )
    refused = await cluster.client(other).status(services.CREATE_PRODUCER, request)
    assert refused == StatusCode.UNAVAILABLE


async def test_what_is_published_to_a_topic_that_has_moved_is_sent_on(
    cluster: BrokerCluster,
) -> None:
    """Every client looks a topic up again when it is told UNAVAILABLE, and nothing else."""
    async with connect(cluster.brokers[0].url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"x")
    former = await cluster.owned(TOPIC)
    raw = cluster.client(former)
    producer_id = await raw.create_producer(TOPIC)
    await cluster.move(TOPIC, next(each for each in cluster.brokers if each is not former))
    place = api.MsgID(producer_id=producer_id, topic_name=TOPIC, topic_offset=0)
    message = api.StreamMessage(msg_id=place, payload=b"y")
    assert await raw.status(services.SEND_MESSAGE, message) == StatusCode.UNAVAILABLE


async def test_producers_on_all_brokers_create_a_topic_at_once(cluster: BrokerCluster) -> None:
    async def publish(url: str, topic: str) -> int:
        async with connect(url) as client, client.producer(topic) as producer:
            return (await producer.send(b"x")).offset or 0

    for number in range(5):
        publishing = (publish(each.url, f"{TOPIC}-{number}") for each in cluster.brokers)
        assert sorted(await asyncio.gather(*publishing)) == [0, 1, 2]


async def test_messages_offsets_and_cursors_move_with_a_topic(cluster: BrokerCluster) -> None:
    async with connect(cluster.brokers[0].url) as client:
        async with client.producer(TOPIC) as producer:
            for number in range(10):
                await producer.send(b"%d" % number)
        async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
            for number in range(6):
                message = await anext(aiter(consumer))
                assert message.payload == b"%d" % number
                await consumer.ack(message)
        for _ in range(3):
            owner = await cluster.owned(TOPIC)
            target = next(each for each in cluster.brokers if each is not owner)
            await cluster.move(TOPIC, target)
        async with client.producer(TOPIC) as producer:
            assert (await producer.send(b"10")).offset == 10
        async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
            received = [await anext(aiter(consumer)) for _ in range(5)]
        assert [message.payload for message in received] == [b"6", b"7", b"8", b"9", b"10"]


def put(url: str, first: int, rows: list[bytes]) -> PutAnswer:
    """Publish a numbered batch to one broker, as a program in whatever language would."""
    flight = BlockingFlight(url, Credentials(), 10.0)
    stream = flight.put(PublishCommand(topic=TOPIC, producer="exactly-once"), SCHEMA)
    columns = completed(pa.record_batch({"payload": pa.array(rows, pa.binary())}), "p", 1)
    last = first + len(rows) - 1
    stream.write(columns, BatchNumbers(first_sequence=first, last_sequence=last, digest=7))
    return stream.answer()


async def test_a_repeated_batch_is_known_by_the_next_owner(cluster: BrokerCluster) -> None:
    """The answer was lost, the topic has moved, and the producer sends the same batch again."""
    async with connect(cluster.brokers[0].url) as client:
        await (await client.producer(TOPIC)).close()
        owner = await cluster.owned(TOPIC)
        applied = await asyncio.to_thread(put, owner.url, 0, [b"a", b"b", b"c"])
        assert applied.result == "applied"
        for _ in range(2):
            target = next(each for each in cluster.brokers if each is not owner)
            await cluster.move(TOPIC, target)
            again = await asyncio.to_thread(put, target.url, 0, [b"a", b"b", b"c"])
            assert (again.result, again.offset) == ("already_applied", 0)
            owner = target
        await asyncio.to_thread(put, owner.url, 3, [b"d"])
        table = await client.reader(TOPIC).to_arrow()
    assert table["payload"].to_pylist() == [b"a", b"b", b"c", b"d"]


def has_reached(gathered: list[tuple[int, int]], count: int) -> bool:
    return len(gathered) >= count


async def test_publishing_goes_on_while_a_topic_moves_from_broker_to_broker(
    cluster: BrokerCluster,
) -> None:
    acknowledged: list[tuple[int, int]] = []
    moved = asyncio.Event()
    async with connect(cluster.brokers[0].url) as client:
        async with client.producer(TOPIC) as producer:

            async def publish() -> None:
                number = 0
                while not moved.is_set():
                    sent = await producer.send(b"%d" % number)
                    assert sent.offset is not None
                    acknowledged.append((number, sent.offset))
                    number += 1

            publishing = asyncio.create_task(publish())
            for turn in range(6):
                await cluster.move(TOPIC, cluster.brokers[turn % 3])
                wanted = len(acknowledged) + 5
                await cluster.until(partial(has_reached, acknowledged, wanted))
            moved.set()
            await asyncio.wait_for(publishing, 30)
        table = await client.reader(TOPIC).to_arrow()
    stored = [int(payload) for payload in table["payload"].to_pylist()]
    assert [stored[offset] for _, offset in acknowledged] == [n for n, _ in acknowledged]


async def test_a_broker_that_stops_leaves_its_topics_to_the_others(
    cluster: BrokerCluster,
) -> None:
    names = [f"{TOPIC}-{number}" for number in range(9)]
    first, *others = cluster.brokers
    async with connect(first.url) as client:
        for name in names:
            async with client.producer(name) as producer:
                await producer.send(b"before")
    for stopping in list(cluster.brokers[:2]):
        await stopping.stop()
        last = others[-1]
        async with connect(last.url) as client:
            for name in names:
                async with client.producer(name) as producer:
                    assert ((await producer.send(b"after")).offset or 0) >= 1
        await stopping.start()


async def test_dead_letters_reach_a_topic_of_another_broker(cluster: BrokerCluster) -> None:
    admin = cluster.client(cluster.brokers[0])
    letters = "/default/letters"
    await admin.create_topic(TOPIC)
    await admin.create_topic(letters)
    owner = await cluster.owned(TOPIC)
    target = next(each for each in cluster.brokers if each is not owner)
    await cluster.move(letters, target)
    await admin.set_failure_policy(
        TOPIC,
        max_redelivery_count=0,
        ack_timeout_ms=10_000,
        base_redelivery_delay_ms=10,
        max_redelivery_delay_ms=10,
        dead_letter_topic=letters,
        poison_policy=0,
    )
    async with connect(owner.url) as client:
        async with (
            client.consumer(TOPIC, "s") as consumer,
            client.consumer(letters, "audit") as auditor,
            client.producer(TOPIC, name="source") as producer,
        ):
            await producer.send(b"poison", attributes={"a": "b"}, routing_key="k")
            await consumer.nack(await anext(aiter(consumer)))
            letter = await anext(aiter(auditor))
        assert (letter.payload, letter.routing_key, letter.producer_name) == (
            b"poison",
            "k",
            "source",
        )
        assert letter.attributes["a"] == "b"
