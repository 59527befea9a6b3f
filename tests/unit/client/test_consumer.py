import asyncio

import pytest

from pydanube.client.client import Client
from pydanube.client.consumer import QUEUE_MESSAGES_MAX, SETTLE_SECONDS_MAX, Consumer
from pydanube.errors import AccessDenied, Conflict, NotFound, Unavailable
from pydanube.wire.calls import CallRefused, StatusCode
from tests.support.fake_brokers import OTHER_URL, URL, FakeBroker, FakeBrokers, with_client

TOPIC = "/default/orders"


async def publish(client: Client, *payloads: bytes) -> None:
    async with client.producer(TOPIC, name="till") as producer:
        for payload in payloads:
            await producer.send(payload)


async def take(consumer: Consumer, number: int) -> list[bytes]:
    taken = []
    for _ in range(number):
        async with asyncio.timeout(60):
            message = await consumer.receive()
        await consumer.ack(message)
        taken.append(message.payload)
    return taken


def only_consumer(broker: FakeBroker) -> int:
    (consumer_id,) = broker.consumers
    return consumer_id


def test_messages_arrive_with_all_that_belongs_to_them_and_acks_go_back() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        consumer = await client.consumer(TOPIC, "billing")
        async with client.producer(TOPIC, name="till") as producer:
            await producer.send(b"one", attributes={"a": "b"}, routing_key="k")
        message = await consumer.receive()
        assert (message.topic, message.offset, message.payload) == (TOPIC, 0, b"one")
        assert (message.attributes, message.routing_key) == ({"a": "b"}, "k")
        assert (message.producer_name, message.schema_id) == ("till", None)
        await consumer.ack(message)
        assert cluster.subscriptions[TOPIC, "billing"].acked == {0}
        await consumer.nack(message, delay_ms=5, reason="why not")
        assert cluster.subscriptions[TOPIC, "billing"].nacked == [0]
        _, nack = next(call for call in cluster.first.calls if call[0] == "Nack")
        assert (nack.delay_ms, nack.reason) == (5, "why not")

    with_client(test)


def test_the_wish_of_the_subscriber_is_passed_on() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        await publish(client, b"early")
        consumer = await client.consumer(
            TOPIC,
            "billing",
            name="worker",
            subscription_type="KeyShared",
            key_filters=["eu-*"],
            start_position="earliest",
        )
        request = cluster.first.consumers[only_consumer(cluster.first)].request
        assert (request.consumer_name, request.subscription_type) == ("worker", 3)
        assert list(request.key_filters) == ["eu-*"]
        assert await take(consumer, 1) == [b"early"]

    with_client(test)


def test_all_partitions_are_received_through_one_consumer() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC, partitions=3)
        cluster.owners[f"{TOPIC}-part-1"] = OTHER_URL
        cluster.second.producers |= cluster.first.producers
        consumer = await client.consumer(TOPIC, "billing")
        assert consumer.topics == [f"{TOPIC}-part-{index}" for index in range(3)]
        for number in range(9):
            await producer.send(b"%d" % number)
        assert sorted(await take(consumer, 9)) == [b"%d" % number for number in range(9)]
        assert len(cluster.second.consumers) == 1
        for index in range(3):
            assert len(cluster.subscriptions[f"{TOPIC}-part-{index}", "billing"].acked) == 3

    with_client(test)


def test_a_topic_that_does_not_exist_is_not_found() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        with pytest.raises(NotFound, match=TOPIC):
            await client.consumer(TOPIC, "billing")

    with_client(test)


def test_a_refused_subscription_is_raised_at_once() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        cluster.first.refuse("Subscribe", StatusCode.PERMISSION_DENIED)
        with pytest.raises(AccessDenied):
            await client.consumer(TOPIC, "billing")
        assert cluster.first.count("Subscribe") == 1

    with_client(test)


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("seconds", [0.05, 3, 90])
def test_a_consumer_outlives_a_restart_of_its_broker(seconds: float, forget: bool) -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        consumer = await client.consumer(TOPIC, "billing")
        await publish(client, b"one", b"two")
        assert await take(consumer, 1) == [b"one"]
        cluster.first.crash(forget=forget)
        await asyncio.sleep(seconds)
        cluster.first.down = False
        await publish(client, b"three")
        # What was read but not acked before the crash may come twice.
        received = await take(consumer, 2)
        while received[-1] != b"three":
            received += await take(consumer, 1)
        assert set(received) == {b"two", b"three"}
        assert cluster.subscriptions[TOPIC, "billing"].acked == {0, 1, 2}

    with_client(test)


def test_a_consumer_that_was_forgotten_subscribes_again() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        consumer = await client.consumer(TOPIC, "billing")
        await asyncio.sleep(1)
        cluster.first.consumers.popitem()[1].inbox.put_nowait(None)
        await asyncio.sleep(1)
        await publish(client, b"one")
        assert await take(consumer, 1) == [b"one"]

    with_client(test)


def test_a_stream_that_is_refused_again_and_again_is_not_asked_for_in_a_hurry() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        cluster.first.refuse("ReceiveMessages", *[StatusCode.UNAVAILABLE] * 1_000)
        await client.consumer(TOPIC, "billing")
        await asyncio.sleep(300)
        assert 60 < cluster.first.count("ReceiveMessages") < 150

    with_client(test)


def test_while_the_broker_is_away_attempts_grow_rare() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        await client.consumer(TOPIC, "billing")
        cluster.first.crash()
        cluster.first.down = False
        cluster.first.refuse("Subscribe", *[StatusCode.UNAVAILABLE] * 1_000)
        await asyncio.sleep(300)
        assert 60 < cluster.first.count("Subscribe") < 600

    with_client(test)


def test_a_topic_that_moves_takes_its_consumers_along() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        consumer = await client.consumer(TOPIC, "billing")
        await publish(client, b"one")
        assert await take(consumer, 1) == [b"one"]
        cluster.owners[TOPIC] = OTHER_URL
        moved = cluster.first.consumers[only_consumer(cluster.first)]
        moved.inbox.put_nowait(CallRefused(StatusCode.UNAVAILABLE, "moved"))
        await publish(client, b"two")
        assert await take(consumer, 1) == [b"two"]
        assert len(cluster.second.consumers) == 1

    with_client(test)


def test_a_consumer_told_to_close_subscribes_again_though_its_stream_is_silent() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        consumer = await client.consumer(TOPIC, "billing")
        await asyncio.sleep(1)
        cluster.owners[TOPIC] = OTHER_URL
        cluster.first.consumers[only_consumer(cluster.first)].closing = True
        await asyncio.sleep(6)
        assert len(cluster.second.consumers) == 1
        await publish(client, b"one")
        assert await take(consumer, 1) == [b"one"]

    with_client(test)


def test_failing_health_polls_leave_a_good_stream_alone() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        await client.consumer(TOPIC, "billing")
        cluster.first.refuse("HealthCheck", *[StatusCode.INTERNAL] * 5)
        await asyncio.sleep(60)
        assert cluster.first.count("Subscribe") == 1
        assert cluster.first.count("HealthCheck") >= 10

    with_client(test)


def test_a_stream_that_was_taken_over_is_asked_for_again_and_not_taken_back() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        consumer = await client.consumer(TOPIC, "billing", name="worker")
        await asyncio.sleep(1)
        cluster.first.consumers[only_consumer(cluster.first)].inbox.put_nowait(None)
        await asyncio.sleep(1)
        assert cluster.first.count("Subscribe") == 1
        assert cluster.first.count("ReceiveMessages") == 2
        await publish(client, b"one")
        assert await take(consumer, 1) == [b"one"]

    with_client(test)


def test_two_consumers_of_one_name_do_not_keep_the_broker_busy() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        await client.consumer(TOPIC, "billing", name="worker")
        await client.consumer(TOPIC, "billing", name="worker")
        await asyncio.sleep(60)
        assert cluster.first.count("Subscribe") == 2
        assert cluster.first.count("ReceiveMessages") < 50

    with_client(test)


def test_a_consumer_that_is_refused_for_good_fails_after_what_it_had_received() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        consumer = await client.consumer(TOPIC, "billing")
        await publish(client, b"one")
        await asyncio.sleep(1)
        cluster.first.refuse("Subscribe", StatusCode.PERMISSION_DENIED)
        cluster.first.crash()
        cluster.first.down = False
        assert await take(consumer, 1) == [b"one"]
        for _ in range(2):
            with pytest.raises(AccessDenied):
                await consumer.receive()
        with pytest.raises(AccessDenied):
            await anext(consumer)

    with_client(test)


def test_a_slow_reader_stops_the_stream_and_loses_nothing() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        consumer = await client.consumer(TOPIC, "billing")
        total = QUEUE_MESSAGES_MAX * 3
        await publish(client, *(b"%d" % number for number in range(total)))
        await asyncio.sleep(3)
        waiting = cluster.first.consumers[only_consumer(cluster.first)].inbox.qsize()
        assert waiting >= total - QUEUE_MESSAGES_MAX - 1
        assert await take(consumer, total) == [b"%d" % number for number in range(total)]

    with_client(test)


def test_an_ack_waits_for_the_broker_to_come_back() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        consumer = await client.consumer(TOPIC, "billing")
        await publish(client, b"one")
        message = await consumer.receive()
        cluster.first.refuse("Ack", *[StatusCode.UNAVAILABLE] * 12)
        await consumer.ack(message)
        assert cluster.subscriptions[TOPIC, "billing"].acked == {0}
        cluster.first.refuse("Ack", *[StatusCode.UNAVAILABLE] * 1_000)
        started = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable, match=r"delivered again .*scripted UNAVAILABLE"):
            await consumer.ack(message)
        assert asyncio.get_running_loop().time() - started == pytest.approx(SETTLE_SECONDS_MAX)


def test_an_ack_that_is_refused_for_good_is_raised_at_once() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        consumer = await client.consumer(TOPIC, "billing")
        await publish(client, b"one")
        message = await consumer.receive()
        cluster.first.refuse("Ack", StatusCode.PERMISSION_DENIED)
        with pytest.raises(AccessDenied):
            await consumer.ack(message)
        assert cluster.first.count("Ack") == 1

    with_client(test)


def test_an_ack_follows_the_topic_to_its_new_broker() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC, owner=OTHER_URL)
        consumer = await client.consumer(TOPIC, "billing")
        await publish(client, b"one")
        message = await consumer.receive()
        cluster.owners[TOPIC] = URL
        cluster.second.crash()
        await consumer.ack(message)
        assert cluster.first.count("Ack") == 1

    with_client(test)


def test_a_message_of_another_topic_cannot_be_acked_here() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        cluster.add_topic("/default/other")
        other = await client.consumer("/default/other", "billing")
        consumer = await client.consumer(TOPIC, "billing")
        await publish(client, b"one")
        with pytest.raises(Conflict, match=TOPIC):
            await other.ack(await consumer.receive())

    with_client(test)


def test_closing_ends_the_iteration_and_every_waiting_receive() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        consumer = await client.consumer(TOPIC, "billing")

        async def iterate() -> int:
            return len([message async for message in consumer])

        async with asyncio.TaskGroup() as group:
            iterations = [group.create_task(iterate()) for _ in range(3)]
            await asyncio.sleep(1)
            await consumer.close()
        assert [each.result() for each in iterations] == [0, 0, 0]
        with pytest.raises(Conflict, match="closed"):
            await consumer.receive()

    with_client(test)


def test_closing_drops_what_nobody_read_and_keeps_acks_possible() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        consumer = await client.consumer(TOPIC, "billing")
        await publish(client, *[b"x"] * (QUEUE_MESSAGES_MAX + 20))
        message = await consumer.receive()
        await asyncio.sleep(1)
        assert cluster.open_streams == 1
        await consumer.close()
        assert cluster.open_streams == 0
        await consumer.ack(message)
        assert cluster.subscriptions[TOPIC, "billing"].acked == {0}

    with_client(test)


def test_a_client_closed_in_the_middle_of_a_reconnect_leaves_nothing_running() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        await client.consumer(TOPIC, "billing")
        cluster.first.crash()
        await asyncio.sleep(7)

    with_client(test)


def test_a_bare_address_gets_a_scheme() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        await client.consumer(TOPIC, "billing")
        assert cluster.opened == [URL]

    with_client(test, url="broker-1:6650")
