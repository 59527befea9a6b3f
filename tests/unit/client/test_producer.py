import asyncio
from itertools import count

import pytest

from pydanube.client.client import Client
from pydanube.errors import AccessDenied, Conflict, InvalidRequest, NotFound, Unavailable
from pydanube.wire.calls import StatusCode
from tests.support.fake_brokers import OTHER_URL, URL, FakeBrokers, with_client

TOPIC = "/default/orders"


def test_a_message_reaches_the_topic_with_all_that_belongs_to_it() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        async with client.producer(TOPIC, name="till") as producer:
            first = await producer.send(b"one", attributes={"a": "b"}, routing_key="k")
            second = await producer.send(b"two")
        assert (first.topic, first.offset, second.offset) == (TOPIC, 0, 1)
        message, plain = cluster.topics[TOPIC].messages
        assert (message.payload, dict(message.attributes)) == (b"one", {"a": "b"})
        assert (message.routing_key, message.producer_name) == ("k", "till")
        assert (message.msg_id.topic_name, message.msg_id.broker_addr) == (TOPIC, URL)
        assert message.publish_time > 0
        assert not plain.HasField("routing_key")

    with_client(test)


def test_topics_are_reliable_unless_told_otherwise() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        await client.producer("/default/kept")
        await client.producer("/default/flying", reliable=False)
        assert cluster.topics["/default/kept"].reliable
        assert not cluster.topics["/default/flying"].reliable
        with pytest.raises(Conflict, match="dispatch"):
            await client.producer("/default/kept", reliable=False)

    with_client(test)


def test_a_lookup_that_names_another_broker_is_followed() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC, owner=OTHER_URL)
        producer = await client.producer(TOPIC)
        await producer.send(b"one")
        assert cluster.second.count("SendMessage") == 1
        assert cluster.first.count("CreateProducer") == 0

    with_client(test)


def test_behind_a_proxy_every_call_but_discovery_names_the_broker_it_is_for() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.proxy_url = "http://proxy:80"
        cluster.add_topic(TOPIC)
        producer = await client.producer(TOPIC)
        cluster.first.refuse("SendMessage", StatusCode.UNAVAILABLE)
        await producer.send(b"one")
        assert cluster.opened == [URL, "http://proxy:80"]
        expected = {"x-danube-broker-url": URL}
        assert cluster.first.metadata["CreateProducer"] == expected
        assert cluster.first.metadata["SendMessage"] == expected
        assert cluster.first.metadata["TopicLookup"] is None

    with_client(test)


def test_a_broker_that_is_away_for_some_seconds_goes_unnoticed() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC)
        cluster.first.down = True
        sending = asyncio.gather(*(producer.send(b"%d" % n) for n in range(50)))
        await asyncio.sleep(10)
        assert not sending.done()
        cluster.first.down = False
        await sending
        assert sorted(map(int, cluster.payloads(TOPIC))) == list(range(50))

    with_client(test)


def test_a_broker_that_forgot_the_producer_is_given_it_again() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC)
        cluster.first.producers.clear()
        await producer.send(b"one")
        cluster.first.refuse("SendMessage", StatusCode.UNAVAILABLE, StatusCode.NOT_FOUND)
        await producer.send(b"two")
        assert cluster.payloads(TOPIC) == [b"one", b"two"]

    with_client(test)


def test_a_topic_that_moves_while_messages_are_sent_takes_its_producers_along() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC)
        await producer.send(b"one")
        cluster.owners[TOPIC] = OTHER_URL
        await producer.send(b"two")
        await producer.send(b"three")
        assert cluster.second.count("SendMessage") == 2
        assert cluster.payloads(TOPIC) == [b"one", b"two", b"three"]

    with_client(test)


def test_when_the_known_broker_is_gone_the_first_one_is_asked_for_the_new_owner() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC, owner=OTHER_URL)
        producer = await client.producer(TOPIC)
        cluster.second.crash()
        cluster.owners[TOPIC] = URL
        await producer.send(b"one")
        assert cluster.first.count("SendMessage") == 1

    with_client(test)


def test_senders_that_fail_together_attach_once() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC)
        await producer.send(b"first")
        later = count()
        cluster.first.delay_seconds = lambda: 0.05 + next(later) / 1e6  # None overtakes another.
        sends = [asyncio.create_task(producer.send(b"%d" % number)) for number in range(100)]
        await asyncio.sleep(0.07)  # Stored, and the answers are under way.
        cluster.first.crash()
        cluster.first.down = False
        await asyncio.gather(*sends)
        assert cluster.first.count("CreateProducer") == 2
        assert cluster.payloads(TOPIC) == [b"first", *(b"%d" % number for number in range(100))]

    with_client(test)


def test_an_overloaded_broker_is_given_time_and_not_a_new_producer() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC)
        cluster.first.refuse("SendMessage", *[StatusCode.RESOURCE_EXHAUSTED] * 3)
        started = asyncio.get_running_loop().time()
        await producer.send(b"x")
        assert asyncio.get_running_loop().time() - started >= 0.6
        assert cluster.first.count("CreateProducer") == 1

    with_client(test)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (StatusCode.PERMISSION_DENIED, AccessDenied),
        (StatusCode.FAILED_PRECONDITION, Conflict),
    ],
)
def test_what_repeating_cannot_mend_is_raised_at_once(
    code: StatusCode, kind: type[Exception]
) -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC)
        cluster.first.refuse("SendMessage", code)
        with pytest.raises(kind):
            await producer.send(b"x")
        assert cluster.first.count("SendMessage") == 1

    with_client(test)


def test_a_topic_that_is_gone_for_good_is_not_found_and_does_not_loop() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC)
        cluster.first.refuse("SendMessage", *[StatusCode.NOT_FOUND] * 2)
        with pytest.raises(NotFound):
            await producer.send(b"x")

    with_client(test)


def test_a_send_ends_at_its_deadline_and_says_that_the_outcome_is_unknown() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC, send_seconds_max=7)
        cluster.first.hold("SendMessage")
        started = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable, match="may or may not be stored"):
            await producer.send(b"x")
        assert asyncio.get_running_loop().time() - started == pytest.approx(7)

    with_client(test)


def test_creating_is_tried_six_times_and_then_given_up() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        started = asyncio.get_running_loop().time()
        cluster.first.refuse("CreateProducer", *[StatusCode.UNAVAILABLE] * 6)
        with pytest.raises(Unavailable, match="broker-1"):
            await client.producer(TOPIC)
        assert cluster.first.count("CreateProducer") == 6
        assert 1.5 <= asyncio.get_running_loop().time() - started <= 3
        await client.producer(TOPIC)

    with_client(test)


def test_partitions_asked_for_are_created_named_and_filled_in_turn() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC, name="till", partitions=3)
        names = [f"{TOPIC}-part-{index}" for index in range(3)]
        assert producer.topics == names
        for number in range(6):
            await producer.send(b"%d" % number)
        await producer.send(b"keyed", routing_key="user-c")
        assert [cluster.payloads(name) for name in names] == [
            [b"0", b"3"],
            [b"1", b"4"],
            [b"2", b"5", b"keyed"],
        ]
        created = [
            call.producer_name for name, call in cluster.first.calls if name == "CreateProducer"
        ]
        assert created == ["till-0", "till-1", "till-2"]

    with_client(test)


def test_partitions_that_exist_are_found_when_none_are_asked_for() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        for index in range(2):
            cluster.add_topic(f"{TOPIC}-part-{index}")
        producer = await client.producer(TOPIC)
        assert producer.topics == [f"{TOPIC}-part-0", f"{TOPIC}-part-1"]

    with_client(test)


def test_names_are_checked_before_anything_is_sent() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        with pytest.raises(InvalidRequest, match="/namespace/topic"):
            await client.producer("orders")
        with pytest.raises(InvalidRequest, match="partitions"):
            await client.producer(TOPIC, partitions=0)
        assert cluster.first.calls == []

    with_client(test)


def test_a_closed_producer_sends_no_more() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        async with client.producer(TOPIC) as producer:
            pass
        with pytest.raises(Conflict, match="closed"):
            await producer.send(b"x")

    with_client(test)


def test_whatever_has_to_be_sent_again_goes_before_what_comes_after_it() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC)
        await producer.send(b"first")
        cluster.first.refuse("SendMessage", StatusCode.RESOURCE_EXHAUSTED)
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(20)))
        assert cluster.payloads(TOPIC)[1:] == [b"%d" % number for number in range(20)]
        assert cluster.first.count("SendMessage") == 22

    with_client(test)


def test_what_is_given_up_holds_nobody_up() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC)
        await producer.send(b"first")
        cluster.first.refuse("SendMessage", StatusCode.INVALID_ARGUMENT)
        with pytest.raises(InvalidRequest):
            await producer.send(b"refused")
        held = cluster.first.hold("SendMessage")
        impatient = asyncio.create_task(producer.send(b"cancelled"))
        patient = asyncio.create_task(producer.send(b"patient"))
        await asyncio.sleep(0.1)
        impatient.cancel()
        held.set()
        await patient
        await producer.send(b"last")
        assert cluster.payloads(TOPIC)[-2:] == [b"patient", b"last"]

    with_client(test)


def test_a_session_the_topic_does_not_know_is_begun_anew() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC)
        await producer.send(b"first")
        cluster.topics[TOPIC].messages.clear()  # As if the topic had been deleted and made anew.
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(10)))
        assert sorted(cluster.payloads(TOPIC)) == [b"%d" % number for number in range(10)]

    with_client(test)


def test_a_message_of_unknown_fate_is_not_sent_again_in_another_session() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer(TOPIC)
        await producer.send(b"first")
        cluster.first.refuse("SendMessage", StatusCode.UNAVAILABLE, StatusCode.OUT_OF_RANGE)
        with pytest.raises(Unavailable, match="may or may not"):
            await producer.send(b"in doubt")
        cluster.first.refuse("SendMessage", StatusCode.OUT_OF_RANGE)
        await producer.send(b"last")
        assert cluster.payloads(TOPIC) == [b"first", b"last"]

    with_client(test)


def test_best_effort_messages_are_not_numbered() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        producer = await client.producer("/default/flying", reliable=False)
        await producer.send(b"x")
        (message,) = cluster.topics["/default/flying"].messages
        assert not message.HasField("producer_sequence")

    with_client(test)
