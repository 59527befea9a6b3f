"""Protocol 4.6 and 4.7: retries, exhausted messages, dead letters."""

from typing import Any

import pytest

from pydanube.wire.calls import StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from tests.support.raw_client import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    RawClient,
    Stream,
    policy_request,
)
from tests.support.running_broker import RunningBroker

TOPIC, DEAD = "/default/orders", "/default/orders-dead"
ALL_KINDS = pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
DEAD_LETTER = admin.SubscriptionPoisonPolicy.DeadLetter
BLOCK = admin.SubscriptionPoisonPolicy.Block
DROP = admin.SubscriptionPoisonPolicy.Drop
FIXED = admin.SubscriptionBackoffStrategy.Fixed
EXPONENTIAL = admin.SubscriptionBackoffStrategy.Exponential


@pytest.fixture
async def producer(client: RawClient) -> int:
    return await client.create_producer(TOPIC)


async def publish(client: RawClient, producer: int, count: int) -> None:
    for number in range(count):
        await client.send(TOPIC, producer, b"%d" % number, routing_key=f"k{number}")


async def fail(client: RawClient, stream: Stream, times: int, **fields: Any) -> api.StreamMessage:
    """Nack a message as often as it comes, `times` times; return its last delivery."""
    message = await stream.next()
    await client.nack(message, **fields)
    for _ in range(times - 1):
        message = await stream.next()
        await client.nack(message, **fields)
    return message


def offset(message: api.StreamMessage) -> int:
    return message.msg_id.topic_offset


# How long a retry waits. The broker's clock is set forward, so that nobody waits for it.


@pytest.mark.parametrize(
    ("policy", "asked_ms", "delays_ms"),
    [
        ({"backoff_strategy": FIXED}, None, [10_000, 10_000, 10_000]),
        ({"backoff_strategy": EXPONENTIAL}, None, [10_000, 20_000, 40_000]),
        (
            {"backoff_strategy": EXPONENTIAL, "max_redelivery_delay_ms": 25_000},
            None,
            [10_000, 20_000, 25_000],
        ),
        ({"backoff_strategy": FIXED}, 0, [10_000]),
        ({"backoff_strategy": FIXED}, 15_000, [15_000, 15_000]),
        ({"backoff_strategy": EXPONENTIAL}, 15_000, [15_000, 20_000]),
        ({"backoff_strategy": FIXED, "max_redelivery_delay_ms": 12_000}, 2**64 - 1, [12_000]),
        ({"base_redelivery_delay_ms": 0}, None, [0, 0]),
        ({"base_redelivery_delay_ms": 0, "max_redelivery_delay_ms": 0}, 60_000, [0]),
    ],
)
async def test_a_retry_waits_for_the_longer_of_policy_and_request_and_never_longer_than_the_cap(
    broker: RunningBroker,
    client: RawClient,
    producer: int,
    policy: dict[str, Any],
    asked_ms: int | None,
    delays_ms: list[int],
) -> None:
    await client.set_failure_policy(TOPIC, **({"base_redelivery_delay_ms": 10_000} | policy))
    stream = await client.consume(TOPIC)
    await publish(client, producer, 1)
    message = await stream.next()
    fields = {} if asked_ms is None else {"delay_ms": asked_ms}
    for number, delay_ms in enumerate(delays_ms):
        await client.nack(message, **fields)
        if delay_ms:
            broker.clock.advance(delay_ms / 1000 - 3)
            assert await stream.rest(0.05) == [], "not before it is due"
            broker.clock.advance(3)
        message = await stream.next(2)
        assert message.attributes["x-delivery-attempt"] == str(number + 2)


@ALL_KINDS
async def test_a_retry_comes_as_soon_as_it_is_due(
    client: RawClient, producer: int, kind: int
) -> None:
    await client.set_failure_policy(TOPIC, base_redelivery_delay_ms=50)
    stream = await client.consume(TOPIC, kind=kind)
    await publish(client, producer, 1)
    await client.nack(await stream.next())
    message = await stream.next(0.3)
    assert offset(message) == 0


@ALL_KINDS
async def test_a_message_not_acked_in_time_comes_again_and_counts_as_failed(
    broker: RunningBroker, client: RawClient, producer: int, kind: int
) -> None:
    await client.set_failure_policy(TOPIC, ack_timeout_ms=20_000, base_redelivery_delay_ms=5_000)
    stream = await client.consume(TOPIC, kind=kind)
    await publish(client, producer, 2)
    await client.ack((await stream.take(2))[1])
    broker.clock.advance(19)
    assert await stream.rest(0.1) == []
    broker.clock.advance(1)
    assert await stream.rest(0.1) == [], "it waits for the policy's delay as a nack does"
    broker.clock.advance(5)
    message = await stream.next()
    assert (offset(message), message.attributes["x-delivery-attempt"]) == (0, "2")


async def test_the_default_is_block_with_a_delay_of_a_second(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    stream = await client.consume(TOPIC)
    await publish(client, producer, 1)
    message = await stream.next()
    for delay in (1, 2, 4, 8, 16):
        await client.nack(message)
        broker.clock.advance(delay + 0.01)
        message = await stream.next()
    assert message.attributes["x-delivery-attempt"] == "6", "five redeliveries"
    await client.nack(message)
    broker.clock.advance(120)
    assert await stream.rest(0.1) == []
    assert broker.topics.get(TOPIC).subscriptions["s"].blocked_count == 1


async def test_waiting_retries_are_delivered_in_offset_order(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    await client.set_failure_policy(TOPIC, base_redelivery_delay_ms=10_000)
    stream = await client.consume(TOPIC)
    await publish(client, producer, 5)
    received = await stream.take(5)
    for number in (3, 0, 4):
        await client.nack(received[number])
    broker.clock.advance(11)
    assert await stream.offsets(3) == [0, 3, 4]


# What becomes of exhausted messages.


@ALL_KINDS
async def test_a_message_is_delivered_max_redelivery_count_times_more_then_dropped(
    broker: RunningBroker, client: RawClient, producer: int, kind: int
) -> None:
    await client.set_failure_policy(
        TOPIC, max_redelivery_count=2, base_redelivery_delay_ms=10, poison_policy=DROP
    )
    await client.set_window(TOPIC, 1)
    stream = await client.consume(TOPIC, kind=kind)
    await publish(client, producer, 2)
    last = await fail(client, stream, 3)
    assert (offset(last), last.attributes["x-delivery-attempt"]) == (0, "3")
    following = await stream.next()
    assert offset(following) == 1
    await client.ack(following)
    assert broker.topics.get(TOPIC).subscriptions["s"].cursor == 2, "as if it had been acked"


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER])
async def test_block_sends_nothing_new_past_the_message_but_retries_go_on(
    client: RawClient, producer: int, kind: int
) -> None:
    await client.set_failure_policy(
        TOPIC, max_redelivery_count=0, base_redelivery_delay_ms=10, poison_policy=BLOCK
    )
    await client.set_window(TOPIC, 3)
    stream = await client.consume(TOPIC, kind=kind)
    await publish(client, producer, 6)
    received = await stream.take(3)
    await client.nack(received[0])
    await client.set_failure_policy(TOPIC, max_redelivery_count=0, poison_policy=BLOCK)
    await client.ack(received[1])
    assert await stream.rest() == [], "nothing new while it blocks"
    # An ack is honoured, however late, and lets the rest follow.
    await client.ack(received[0])
    assert await stream.offsets(2) == [3, 4]


async def test_a_blocked_message_still_blocks_after_a_restart(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    await client.set_failure_policy(TOPIC, max_redelivery_count=1, base_redelivery_delay_ms=10)
    stream = await client.consume(TOPIC)
    await publish(client, producer, 1)
    await fail(client, stream, 2)
    await publish(client, producer, 1)
    await broker.restart()
    client = broker.client()
    stream = client.open(stream.consumer_id)
    # Whether it is still worth an attempt is asked anew, as for any other disconnect.
    for message in await stream.rest():
        if offset(message) == 0:
            assert message.attributes["x-delivery-attempt"] == "3"
            await client.nack(message)
    await publish(client, producer, 1)
    assert 2 not in [offset(message) for message in await stream.rest()]


async def test_a_changed_policy_holds_at_once_for_what_blocks_and_for_what_is_in_flight(
    client: RawClient, producer: int
) -> None:
    await client.set_failure_policy(TOPIC, max_redelivery_count=0, poison_policy=BLOCK)
    stream = await client.consume(TOPIC)
    await publish(client, producer, 3)
    received = await stream.take(3)
    await client.nack(received[0])
    assert await stream.rest(0.1) == []
    await client.set_failure_policy(TOPIC, max_redelivery_count=5, base_redelivery_delay_ms=10)
    assert offset(await stream.next()) == 0, "it has attempts left now"
    await client.nack(received[1])
    assert offset(await stream.next()) == 1
    await client.set_failure_policy(TOPIC, max_redelivery_count=0, poison_policy=DROP)
    await client.nack(received[2])
    assert await stream.rest(0.1) == []


async def test_a_shorter_ack_timeout_holds_for_what_is_in_flight(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    stream = await client.consume(TOPIC)
    await publish(client, producer, 1)
    await stream.next()
    broker.clock.advance(5)
    await client.set_failure_policy(TOPIC, ack_timeout_ms=4_000, base_redelivery_delay_ms=0)
    assert offset(await stream.next()) == 0


# Setting a policy.


async def test_a_policy_may_be_set_before_the_subscription_and_is_returned_as_it_was_set(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    fields = {
        "max_redelivery_count": 3,
        "ack_timeout_ms": 1_000,
        "base_redelivery_delay_ms": 7,
        "max_redelivery_delay_ms": 70,
        "backoff_strategy": EXPONENTIAL,
        "dead_letter_topic": DEAD,
        "poison_policy": DEAD_LETTER,
    }
    await client.set_failure_policy(TOPIC, **fields)
    request = admin.GetSubscriptionFailurePolicyRequest(topic=TOPIC, subscription="s")
    for kind in (None, KEY_SHARED):
        if kind is not None:
            await client.subscribe(TOPIC, kind=kind)
        answer = await client.call(services.GET_SUBSCRIPTION_FAILURE_POLICY, request)
        assert answer.failure_policy == admin.SubscriptionFailurePolicy(**fields)
        assert answer.subscription_type == (kind or 0)
    await broker.restart()
    answer = await broker.client().call(services.GET_SUBSCRIPTION_FAILURE_POLICY, request)
    assert answer.failure_policy == admin.SubscriptionFailurePolicy(**fields)


async def test_a_policy_that_was_never_set_is_returned_as_the_defaults(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    await client.subscribe(TOPIC)
    for subscription in ("s", "never"):
        request = admin.GetSubscriptionFailurePolicyRequest(topic=TOPIC, subscription=subscription)
        answer = await client.call(services.GET_SUBSCRIPTION_FAILURE_POLICY, request)
        assert answer.failure_policy == admin.SubscriptionFailurePolicy(
            max_redelivery_count=5,
            ack_timeout_ms=30_000,
            base_redelivery_delay_ms=1_000,
            max_redelivery_delay_ms=60_000,
            backoff_strategy=EXPONENTIAL,
            poison_policy=BLOCK,
        )
        assert answer.is_default
        assert answer.subscription_exists == (subscription == "s")
    nowhere = admin.GetSubscriptionFailurePolicyRequest(topic="/default/nowhere", subscription="s")
    refused = await broker.refusal(client, services.GET_SUBSCRIPTION_FAILURE_POLICY, nowhere)
    assert refused.code is StatusCode.NOT_FOUND


async def test_a_policy_is_changed_in_part_and_the_rest_stays(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    await client.set_failure_policy(TOPIC, max_redelivery_count=3, ack_timeout_ms=1_000)
    request = own.UpdateFailurePolicyRequest(
        topic=TOPIC, subscription="s", poison_policy="DeadLetter"
    )
    answer = await client.call(services.UPDATE_FAILURE_POLICY, request)
    assert (answer.max_redelivery_count, answer.ack_timeout_ms) == (3, 1_000)
    assert (answer.poison_policy, answer.dead_letter_topic) == ("DeadLetter", f"{TOPIC}-dlq")
    request = own.UpdateFailurePolicyRequest(
        topic=TOPIC, subscription="s", max_redelivery_count=0, unless_set=True
    )
    answer = await client.call(services.UPDATE_FAILURE_POLICY, request)
    assert answer.max_redelivery_count == 3, "it was set before"
    await broker.restart()
    asked = admin.GetSubscriptionFailurePolicyRequest(topic=TOPIC, subscription="s")
    kept = await broker.client().call(services.GET_SUBSCRIPTION_FAILURE_POLICY, asked)
    assert kept.failure_policy.dead_letter_topic == f"{TOPIC}-dlq"


@pytest.mark.parametrize(
    "fields",
    [
        {"poison_policy": "Explode"},
        {"backoff_strategy": "Sometimes"},
        {"ack_timeout_ms": 0},
        {"dead_letter_topic": "dead"},
        {"dead_letter_topic": TOPIC},
    ],
)
async def test_a_change_that_cannot_work_is_refused_and_changes_nothing(
    broker: RunningBroker, client: RawClient, producer: int, fields: dict[str, Any]
) -> None:
    request = own.UpdateFailurePolicyRequest(topic=TOPIC, subscription="s", **fields)
    refused = await broker.refusal(client, services.UPDATE_FAILURE_POLICY, request)
    assert refused.code is StatusCode.INVALID_ARGUMENT
    asked = admin.GetSubscriptionFailurePolicyRequest(topic=TOPIC, subscription="s")
    answer = await client.call(services.GET_SUBSCRIPTION_FAILURE_POLICY, asked)
    assert answer.is_default


@pytest.mark.parametrize(
    "fields",
    [
        {"poison_policy": DEAD_LETTER},
        {"poison_policy": DEAD_LETTER, "dead_letter_topic": "  "},
        {"poison_policy": DEAD_LETTER, "dead_letter_topic": "dead"},
        {"poison_policy": 9},
        {"backoff_strategy": 9},
        {"ack_timeout_ms": 0},
    ],
)
async def test_a_policy_that_cannot_work_is_an_invalid_argument(
    broker: RunningBroker, client: RawClient, producer: int, fields: dict[str, Any]
) -> None:
    request = policy_request(TOPIC, **fields)
    refused = await broker.refusal(client, services.SET_SUBSCRIPTION_FAILURE_POLICY, request)
    assert refused.code is StatusCode.INVALID_ARGUMENT


async def test_policies_are_refused_where_they_cannot_apply(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    await client.create_producer("/default/news", reliable=False)
    missing = admin.SetSubscriptionFailurePolicyRequest(topic=TOPIC, subscription="s")
    for request, code in [
        (missing, StatusCode.INVALID_ARGUMENT),
        (policy_request("/default/news"), StatusCode.FAILED_PRECONDITION),
        (policy_request("/default/nowhere"), StatusCode.NOT_FOUND),
        (policy_request("nowhere"), StatusCode.INVALID_ARGUMENT),
        (policy_request(TOPIC, ""), StatusCode.INVALID_ARGUMENT),
    ]:
        refused = await broker.refusal(client, services.SET_SUBSCRIPTION_FAILURE_POLICY, request)
        assert refused.code is code


# Dead letters.


async def dead_letters(client: RawClient, **policy: Any) -> Stream:
    await client.create_producer(DEAD)
    dead = await client.consume(DEAD, "dead")
    await client.set_failure_policy(
        TOPIC,
        poison_policy=DEAD_LETTER,
        dead_letter_topic=DEAD,
        **({"max_redelivery_count": 1, "base_redelivery_delay_ms": 10} | policy),
    )
    return dead


@ALL_KINDS
async def test_a_dead_letter_keeps_the_message_and_tells_where_it_comes_from(
    broker: RunningBroker, client: RawClient, producer: int, kind: int
) -> None:
    dead = await dead_letters(client)
    stream = await client.consume(TOPIC, kind=kind)
    await client.send(TOPIC, producer, b"first", routing_key="other")
    await client.ack(await stream.next())
    await client.send(
        TOPIC,
        producer,
        b"poison",
        producer_name="somebody",
        publish_time=123,
        routing_key="k",
        attributes={"mine": "1"},
        schema_id=4,
        schema_version=2,
    )
    await fail(client, stream, 2, reason="cannot parse it")
    letter = await dead.next()
    assert letter.msg_id.topic_name == DEAD
    assert letter.msg_id.topic_offset == 0
    assert (letter.payload, letter.routing_key) == (b"poison", "k")
    assert (letter.producer_name, letter.publish_time) == ("somebody", 123)
    assert (letter.schema_id, letter.schema_version) == (4, 2)
    attributes = dict(letter.attributes)
    assert int(attributes.pop("x-original-producer-id")) > 0
    assert attributes == {
        "mine": "1",
        "x-original-topic": TOPIC,
        "x-original-subscription": "s",
        "x-original-topic-offset": "1",
        "x-original-broker-addr": f"http://127.0.0.1:{broker.server.client_port}",
        "x-poison-policy": "dead_letter",
        "x-delivery-attempt": "2",
        "x-failure-reason": "cannot parse it",
    }
    await broker.until(lambda: broker.topics.get(TOPIC).subscriptions["s"].cursor == 2)


async def test_the_reason_of_a_timeout_is_named_and_no_reason_is_left_out(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    dead = await dead_letters(client, max_redelivery_count=0, ack_timeout_ms=20_000)
    stream = await client.consume(TOPIC)
    await publish(client, producer, 2)
    received = await stream.take(2)
    await client.nack(received[0])
    assert "x-failure-reason" not in (await dead.next()).attributes
    broker.clock.advance(21)
    assert (await dead.next()).attributes["x-failure-reason"] == "ack timeout"


async def test_the_dead_letter_topic_is_created_reliable(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    await client.set_failure_policy(
        TOPIC, max_redelivery_count=0, poison_policy=DEAD_LETTER, dead_letter_topic=DEAD
    )
    stream = await client.consume(TOPIC)
    await publish(client, producer, 1)
    await client.nack(await stream.next())
    await broker.until(lambda: broker.topics.find(DEAD) is not None)
    dead = await client.consume(DEAD, start_position="earliest")
    assert (await dead.next()).payload == b"0"


async def test_a_dead_letter_that_cannot_be_stored_is_tried_again_and_then_stored_once(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    await client.create_producer(DEAD, reliable=False)
    await client.set_failure_policy(
        TOPIC,
        max_redelivery_count=0,
        base_redelivery_delay_ms=10,
        poison_policy=DEAD_LETTER,
        dead_letter_topic=DEAD,
    )
    stream = await client.consume(TOPIC)
    await publish(client, producer, 2)
    received = await stream.take(2)
    await client.nack(received[0])
    await client.ack(received[1])
    assert await stream.rest(0.2) == []
    assert broker.topics.get(TOPIC).subscriptions["s"].cursor == 0, "it is not settled"
    await client.delete_topic(DEAD)
    broker.clock.advance(2)
    await broker.until(lambda: broker.topics.get(TOPIC).subscriptions["s"].cursor == 2)
    dead = await client.consume(DEAD, start_position="earliest")
    assert [message.payload for message in await dead.rest()] == [b"0"]


async def test_resolving_a_poison_message_keeps_the_rest_of_its_key(
    client: RawClient, producer: int
) -> None:
    dead = await dead_letters(client, max_redelivery_count=0)
    stream = await client.consume(TOPIC, kind=KEY_SHARED)
    for number in range(4):
        await client.send(TOPIC, producer, b"%d" % number, routing_key="k")
    await client.nack(await stream.next())
    assert (await dead.next()).payload == b"0"
    for number in (1, 2, 3):
        message = await stream.next()
        assert message.payload == b"%d" % number
        await client.ack(message)


async def test_dead_letters_survive_a_restart(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    await dead_letters(client, max_redelivery_count=0)
    stream = await client.consume(TOPIC)
    await publish(client, producer, 3)
    for message in await stream.take(3):
        await client.nack(message)
    await broker.until(lambda: broker.topics.get(TOPIC).subscriptions["s"].cursor == 3)
    await broker.restart()
    client = broker.client()
    dead = await client.consume(DEAD, "dead")
    assert await dead.payloads(3) == [b"0", b"1", b"2"]
    assert await client.open(stream.consumer_id).rest() == []
