"""Messages that wait for their time, or outlive it, from the publish to the stream."""

import asyncio

import pytest
from msgspec.structs import replace

from pydanube.errors import InvalidRequest
from pydanube.model.batch import Batch
from pydanube.model.ids import Offset
from pydanube.model.policies import Policies, SubscriptionType
from pydanube.observability.counts import SubscriptionMetrics
from tests.support.advancing_clock import AdvancingClock
from tests.support.journals import instant_disk, rotating_at
from tests.support.served_topic import Receiver, ServedTopic, message, served

KINDS: list[SubscriptionType] = ["Exclusive", "Shared", "Failover", "KeyShared"]


async def publish(topic: ServedTopic, clock: AdvancingClock, *attributes: dict[str, str]) -> None:
    """Publish a message with each of these attributes, every one with a key of its own."""
    for number, each in enumerate(attributes):
        sent = message(
            publish_time_ms=clock.now_ms(), attributes=each or None, routing_key=f"{number}"
        )
        await topic.send(sent).over


def counts(receiver: Receiver) -> SubscriptionMetrics:
    observer = receiver.subscription._context.observer
    assert isinstance(observer, SubscriptionMetrics)
    return observer


async def passed(clock: AdvancingClock, seconds: float) -> None:
    clock.advance(seconds)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_delayed_message_comes_when_it_is_due_and_others_go_ahead(
    kind: SubscriptionType,
) -> None:
    clock = AdvancingClock()
    async with served(instant_disk(), clock=clock) as topic:
        receiver = topic.subscribe(kind)
        at = {"x-deliver-at": str(clock.now_ms() + 60_000)}
        await publish(topic, clock, {}, at, {}, {"x-deliver-after": "30000"}, {"colour": "red"})
        assert await receiver.receive() == [0, 2, 4]
        assert receiver.subscription.delayed_count == 2
        await receiver.ack(0, 5)
        assert receiver.subscription.cursor == 1
        await passed(clock, 29)
        assert await receiver.receive() == []
        await passed(clock, 2)
        assert await receiver.receive() == [3]
        await passed(clock, 30)
        assert await receiver.receive() == [1]
        assert receiver.attempts == [1] * 5
        await receiver.ack(1, 4)
        assert receiver.subscription.cursor == 5
        assert receiver.subscription.delayed_count == 0


async def test_a_key_waits_for_its_delayed_message() -> None:
    clock = AdvancingClock()
    async with served(instant_disk(), clock=clock) as topic:
        receiver = topic.subscribe("KeyShared")
        for number, key in enumerate("aab"):
            attributes = {"x-deliver-after": "5000"} if number == 0 else None
            sent = message(publish_time_ms=clock.now_ms(), attributes=attributes, routing_key=key)
            await topic.send(sent).over
        assert await receiver.receive() == [2]
        await passed(clock, 6)
        assert await receiver.receive() == [0]
        await receiver.ack(0)
        assert await receiver.receive() == [1]


async def test_a_delay_survives_a_restart() -> None:
    clock, disk = AdvancingClock(), instant_disk()
    async with served(disk, clock=clock) as topic:
        receiver = topic.subscribe()
        await publish(topic, clock, {"x-deliver-after": "60000"}, {})
        assert await receiver.receive() == [1]
        await receiver.ack(1)
    async with served(disk, clock=clock) as topic:
        receiver = topic.subscribe()
        assert await receiver.receive() == []
        await passed(clock, 61)
        assert await receiver.receive() == [0]


async def test_delayed_messages_take_no_room_from_others() -> None:
    clock = AdvancingClock()
    async with served(instant_disk(), clock=clock) as topic:
        receiver = topic.subscribe(window=2, credit=3)
        await publish(topic, clock, *[{"x-deliver-after": "1000"}] * 10, {}, {})
        assert await receiver.receive() == [10, 11]
        assert receiver.subscription.delayed_count == 10
        await passed(clock, 2)
        assert await receiver.receive() == []
        await receiver.ack(10, 12)
        assert await receiver.receive() == [0, 1]


async def test_a_wall_clock_that_jumps_is_followed() -> None:
    clock = AdvancingClock()
    jumped_ms = 0
    clock.now_ms, real_now_ms = (lambda: real_now_ms() + jumped_ms), clock.now_ms  # type: ignore[method-assign]
    async with served(instant_disk(), clock=clock) as topic:
        receiver = topic.subscribe()
        await publish(topic, clock, {"x-deliver-after": "600000"})
        assert await receiver.receive() == []
        jumped_ms = -300_000
        await topic.topic.pass_time()
        await passed(clock, 601)
        assert await receiver.receive() == [], "by the clock on the wall it is not due yet"
        jumped_ms = 0
        await topic.topic.pass_time()
        await passed(clock, 0)
        assert await receiver.receive() == [0]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_that_outlived_its_time_is_settled_and_counted(
    kind: SubscriptionType,
) -> None:
    clock = AdvancingClock()
    async with served(instant_disk(), clock=clock) as topic:
        receiver = topic.subscribe(kind)
        await publish(topic, clock, {"x-ttl-ms": "5000"}, {}, {"x-ttl-ms": "90000"})
        clock.advance(10)
        assert await receiver.receive() == [1, 2]
        assert counts(receiver).expired == 1
        await receiver.ack(1, 3)
        assert receiver.subscription.cursor == 3


async def test_the_policy_counts_from_the_publish_time() -> None:
    clock = AdvancingClock()
    policies = Policies(message_ttl_ms=60_000)
    async with served(instant_disk(), clock=clock, policies=policies) as topic:
        receiver = topic.subscribe()
        old = message(publish_time_ms=clock.now_ms() - 60_000)
        await topic.send(old).over
        await publish(topic, clock, {}, {"x-ttl-ms": "999999"})
        assert await receiver.receive() == [1, 2]
        # Nacked, it is not delivered again once its time is over.
        nacked = asyncio.Event()
        receiver.subscription.nack(Offset(2), Offset(3), 0, None, lambda error: nacked.set())
        await nacked.wait()
        await passed(clock, 61)
        assert await receiver.receive() == []
        assert counts(receiver).expired == 2
        assert receiver.subscription.cursor == 1, "what is out with a consumer stays"


async def test_messages_expire_without_a_consumer_and_by_the_whole() -> None:
    clock, disk = AdvancingClock(), instant_disk()
    policies = Policies(message_ttl_ms=60_000)
    config = rotating_at(3_000, tail_cache_bytes_max=0)
    async with served(disk, clock=clock, policies=policies, config=config) as topic:
        idle, late = topic.subscribe(number=1), topic.subscribe(number=2)
        for receiver in (idle, late):
            receiver.subscription.close_stream(receiver.stream)
        await publish(topic, clock, *[{}] * 20)
        clock.advance(40)
        await publish(topic, clock, *[{}] * 5)
        late.subscription.advance(Offset(22), lambda error: None)
        await topic.topic.pass_time()
        assert idle.subscription.cursor == 0
        clock.advance(30)
        await topic.topic.pass_time()
        assert idle.subscription.cursor == 20
        assert late.subscription.cursor == 22
        assert counts(idle).expired == 20
        assert counts(late).expired == 0
        clock.advance(60)
        await topic.topic.pass_time()
        assert idle.subscription.cursor == late.subscription.cursor == 25
        await asyncio.sleep(0)
        await topic.storage.flush()
    async with served(disk, clock=clock) as topic:
        assert topic.subscribe(number=1).subscription.cursor == 25


async def test_a_topic_may_live_longer_than_its_namespace_allows() -> None:
    async with served(instant_disk(), policies=Policies(message_ttl_ms=5)) as topic:
        assert topic.topic.message_ttl_ms() == 5
        topic.topic.record = replace(topic.topic.record, message_ttl_ms=0)
        assert topic.topic.message_ttl_ms() is None
        topic.topic.record = replace(topic.topic.record, message_ttl_ms=9)
        assert topic.topic.message_ttl_ms() == 9


@pytest.mark.parametrize("name", ["x-deliver-at", "x-deliver-after", "x-ttl-ms"])
async def test_times_that_mean_nothing_are_refused(name: str) -> None:
    async with served(instant_disk()) as topic:
        with pytest.raises(InvalidRequest, match=name):
            await topic.send(message(attributes={name: "soon"})).over
        with pytest.raises(InvalidRequest, match=name):
            await topic.put(Batch.gather([message(attributes={name: "soon"})])).over
        stored = Batch.gather([message(attributes={name: "-1"})])
        with pytest.raises(InvalidRequest, match=name):
            await topic.put(Batch.from_bytes(stored.data, stored.count)).over
        await topic.put(Batch.gather([message(attributes={name: "1"})])).over
        assert len(await topic.payloads()) == 1


async def test_what_is_not_stored_cannot_wait() -> None:
    async with served(instant_disk(), reliable=False) as topic:
        for name in ("x-deliver-at", "x-deliver-after", "x-ttl-ms"):
            with pytest.raises(InvalidRequest, match="not reliable"):
                await topic.send(message(attributes={name: "1"})).over
            with pytest.raises(InvalidRequest, match="not reliable"):
                await topic.put(Batch.gather([message(attributes={name: "1"})])).over
        await topic.send(message(attributes={"other": "1"})).over
