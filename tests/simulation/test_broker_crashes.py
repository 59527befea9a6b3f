"""A whole broker on a disk that stops at every single operation, in life and in recovery."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import cache

import pytest

from pydanube.broker.addresses import AdvertisedUrls
from pydanube.broker.broker import Broker, Urls
from pydanube.broker.metadata import Peers
from pydanube.errors import DanubeError, Unavailable
from pydanube.model.policies import FailurePolicy
from pydanube.observability.metrics import BrokerMetrics
from pydanube.runtime.machine import Machine
from pydanube.runtime.randomness import Randomness, SeededRandomness
from pydanube.runtime.simulation.append_file import SimulatedAppendFile
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.simulation.network import SimulatedNetwork
from pydanube.wire.calls import CallRefused, Channel, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.services import invoke
from tests.support.broker_machine import MortalClock, simulated_config
from tests.support.checkers import Evidence, WatchedSubscription, find_violations
from tests.support.history import History
from tests.support.operators import set_failure_policy
from tests.support.plain_engine import PlainChannel, PlainEngine
from tests.support.recorded_channel import ClientMemory, RecordedChannel, value_of
from tests.support.table_channel import TableChannel
from tests.support.wire_calls import (
    ack,
    create_producer,
    create_topic,
    delete_topic,
    nack,
    send,
    subscribe,
)

TOPIC, PASSING = "/default/staying", "/default/passing"
SUBSCRIPTION, AUDIT = "readers", "audit"
URL = "http://broker:6650"
POLICY = FailurePolicy(base_redelivery_delay_ms=0, max_redelivery_count=1_000)
READ_SECONDS = 2.0
# So small that journal files are finished, indexed and deleted within one life.
CONFIG = simulated_config(file_bytes_max=1_200, tail_cache_bytes_max=0)


class Promises:
    """What the broker has acknowledged besides messages."""

    def __init__(self) -> None:
        self.topics: dict[str, str] = {}
        """Of each topic: what is known, absent or present, or unsure while a call is open."""
        self.subscribed = False
        self.policy_set = False


class CrashWorld:
    """One machine; brokers live on it one after another, and each may be stopped anywhere."""

    def __init__(self, randomness: Randomness) -> None:
        self.disk = SimulatedDisk(randomness)
        self.history = History()
        self.promises = Promises()
        self._network = SimulatedNetwork(randomness)
        self._memory = ClientMemory()
        self._sent = 0
        self.unanswered: dict[int, api.StreamMessage] = {}
        """What was to be acked when the broker died."""

    async def live(self, life: Callable[["Clients"], Awaitable[None]]) -> bool:
        """Let a broker start, live and stop; tell whether it came to its end."""
        self.history.boot += 1
        clock = MortalClock()
        machine = Machine(
            clock=clock,
            files=self.disk.mount(),
            network=self._network.host("broker"),
            randomness=SeededRandomness(self.history.boot),
        )
        host = machine.network
        peers = Peers(engine=PlainEngine(host), connect=lambda _: PlainChannel(host, "nobody", 1))
        broker = Broker(CONFIG, machine, BrokerMetrics(""), peers)
        living = asyncio.create_task(self._live(broker, life), name="life")
        stopped = asyncio.create_task(self.disk.wait_until_stopped(), name="stop")
        await asyncio.wait([living, stopped], return_when=asyncio.FIRST_COMPLETED)
        survived = not self.disk.stopped
        for task in (living, stopped):
            task.cancel()
        result, _ = await asyncio.gather(living, stopped, return_exceptions=True)
        clock.alive = False
        self.disk.kill()
        with suppress(DanubeError, OSError):
            await broker.close()
        if survived and isinstance(result, BaseException):
            raise result
        return survived

    async def _live(self, broker: Broker, life: Callable[["Clients"], Awaitable[None]]) -> None:
        await broker.recover(Urls(client=AdvertisedUrls(URL, URL), admin=URL, metrics=""))
        await life(Clients(self, self._channel(broker, admin=False), self._channel(broker, True)))
        await broker.drain()
        await broker.close()

    def _channel(self, broker: Broker, admin: bool) -> Channel:
        table = (broker.admin_gate if admin else broker.client_gate).table
        peer = f"client of broker {self.history.boot}"
        return RecordedChannel(TableChannel(table, peer), self.history, "client", self._memory)

    def next_value(self) -> str:
        self._sent += 1
        return f"v{self._sent}"


class Clients:
    """Everybody who talks to one living broker."""

    def __init__(self, world: CrashWorld, channel: Channel, operator: Channel) -> None:
        self._world = world
        self._promises = world.promises
        self._channel = channel
        self._operator = operator

    # One life.

    async def work(self) -> None:
        """Do a bit of everything."""
        await self.check_promises()
        await self.create(TOPIC)
        await set_failure_policy(self._operator, TOPIC, SUBSCRIPTION, POLICY)
        self._promises.policy_set = True
        consumer = await subscribe(self._channel, TOPIC, SUBSCRIPTION, "reader", "Exclusive")
        self._promises.subscribed = True
        await self.ack(*self._world.unanswered.values())
        await self.publish(TOPIC, 3)
        await self.create(PASSING)
        await self.publish(PASSING, 2)
        await self.receive(consumer, acks=2, nacks=1)
        await self.publish(TOPIC, 2)
        await self.delete(PASSING)
        await self.receive(consumer, acks=1, nacks=0)

    async def create(self, topic: str) -> None:
        known = self._promises.topics.get(topic, "absent")
        self._promises.topics[topic] = "present" if known == "present" else "unsure"
        try:
            await create_topic(self._operator, topic, "Reliable")
        except CallRefused as refused:
            if refused.code is not StatusCode.ALREADY_EXISTS:
                raise
            assert known != "absent", f"{topic} is there though it was deleted"
        else:
            assert known != "present", f"{topic} was forgotten"
        self._promises.topics[topic] = "present"

    async def delete(self, topic: str) -> None:
        self._promises.topics[topic] = "unsure"
        await delete_topic(self._operator, topic)
        self._promises.topics[topic] = "absent"

    async def publish(self, topic: str, count: int) -> None:
        producer = await create_producer(self._channel, topic, "writer", "Reliable")
        await gather(
            *(
                send(self._channel, topic, producer, "writer", self._world.next_value(), length=90)
                for _ in range(count)
            )
        )

    async def receive(self, consumer: int, *, acks: int, nacks: int) -> None:
        """Take some messages at once, then answer them at once; others are left unanswered."""
        request = api.ReceiveRequest(request_id=1, consumer_id=consumer).SerializeToString()
        stream = self._channel.stream(services.RECEIVE_MESSAGES.path, request)
        assert isinstance(stream, AsyncGenerator)
        async with aclosing(stream):
            messages = [
                api.StreamMessage.FromString(await anext(stream)) for _ in range(acks + nacks)
            ]
            await gather(
                self.ack(*messages[:acks]),
                *(nack(self._channel, message, SUBSCRIPTION) for message in messages[acks:]),
            )

    async def ack(self, *messages: api.StreamMessage) -> None:
        """Ack messages at once; those that are not answered will be acked by the next life."""
        unanswered = self._world.unanswered
        unanswered.update({message.msg_id.topic_offset: message for message in messages})
        await gather(*(ack(self._channel, message, SUBSCRIPTION) for message in messages))
        for message in messages:
            del unanswered[message.msg_id.topic_offset]

    # What must have survived.

    async def check_promises(self) -> None:
        promises = self._promises
        for topic, known in promises.topics.items():
            request = api.TopicLookupRequest(request_id=1, topic=topic)
            try:
                await invoke(self._channel, services.TOPIC_LOOKUP, request)
                found = "present"
            except CallRefused:
                found = "absent"
            assert known in ("unsure", found), f"{topic} should be {known} and is {found}"
        if promises.policy_set:
            asked = admin.GetSubscriptionFailurePolicyRequest(
                topic=TOPIC, subscription=SUBSCRIPTION
            )
            method = services.GET_SUBSCRIPTION_FAILURE_POLICY
            reply = await invoke(self._operator, method, asked)
            assert reply.failure_policy.max_redelivery_count == POLICY.max_redelivery_count
        if promises.subscribed:
            listed = await invoke(
                self._operator, services.LIST_SUBSCRIPTIONS, admin.TopicRequest(name=TOPIC)
            )
            assert SUBSCRIPTION in listed.subscriptions, "the subscription was forgotten"

    async def finish(self) -> None:
        """Check what was promised, then read and ack whatever is left."""
        await self.check_promises()
        await self.create(TOPIC)
        await self.publish(TOPIC, 1)
        await self.ack(*self._world.unanswered.values())
        for subscription in (SUBSCRIPTION, AUDIT):
            consumer = await subscribe(self._channel, TOPIC, subscription, "reader", "Exclusive")
            await self._read_all(consumer, subscription)

    async def _read_all(self, consumer: int, subscription: str) -> None:
        """Ack everything up to the last value sent."""
        last = f"v{self._world._sent}"
        request = api.ReceiveRequest(request_id=1, consumer_id=consumer).SerializeToString()
        stream = self._channel.stream(services.RECEIVE_MESSAGES.path, request)
        assert isinstance(stream, AsyncGenerator)
        async with aclosing(stream), asyncio.timeout(READ_SECONDS):
            while True:
                message = api.StreamMessage.FromString(await anext(stream))
                await ack(self._channel, message, subscription)
                if value_of(message.payload) == last:
                    return


async def gather(*calls: Awaitable[object]) -> None:
    """Wait for all, then raise what one of them raised."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def violations_in(world: CrashWorld) -> list[str]:
    history = world.history
    log = {
        delivery.offset: delivery.value
        for delivery in history.deliveries
        if delivery.subscription == AUDIT
    }
    evidence = Evidence(
        history,
        logs={TOPIC: log},
        subscriptions=[WatchedSubscription(TOPIC, SUBSCRIPTION, "Exclusive")],
        restarts=history.boot - 1,
    )
    return [str(violation) for violation in find_violations(evidence)]


@cache
def count_operations() -> int:
    async def main(randomness: Randomness) -> int:
        world = CrashWorld(randomness)
        assert await world.live(Clients.work)
        assert await world.live(Clients.work)
        return world.disk.operations

    return run_simulated(main, "count")


async def stop_at(
    randomness: Randomness, number: int, after: bool, recoveries: tuple[int, ...]
) -> None:
    """Stop at one operation, then at those of the next recoveries, counted from their beginning."""
    world = CrashWorld(randomness)
    world.disk.crash_at(number, after=after)
    for _ in range(2):
        if not await world.live(Clients.work):
            break
    for operation in recoveries:
        restart(world, randomness)
        world.disk.crash_at(world.disk.operations + operation, after=randomness.below(2) == 0)
        await world.live(Clients.work)
    restart(world, randomness)
    assert await world.live(Clients.finish)
    found = violations_in(world)
    assert not found, "\n".join([f"stopped at {number}, {after}, {recoveries}", *found])


def restart(world: CrashWorld, randomness: Randomness) -> None:
    if randomness.below(4):
        world.disk.crash(randomness)
    else:
        world.disk.kill()


def crash_everywhere(part: int = 0, parts: int = 1) -> int:
    """Stop before and after each operation, and then in two recoveries; return how often."""
    numbers = range(1 + part, count_operations() + 1, parts)
    for number in numbers:
        for after in (False, True):
            seed = f"{number} {after}"
            chance = SeededRandomness(seed)
            recoveries = (1 + chance.below(15), 1 + chance.below(15))
            run_simulated(lambda r, n=number, a=after, m=recoveries: stop_at(r, n, a, m), seed)
    return len(numbers) * 2 * 3


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_nothing_promised_is_lost_wherever_the_machine_stops(part: int) -> None:
    crashes = crash_everywhere(part, 4)
    print(f"every fourth of {count_operations()} operations, {crashes} crashes recovered from")


@pytest.mark.slow
@pytest.mark.parametrize("operation", range(1, 26))
def test_recovery_may_itself_be_stopped_at_each_of_its_operations(operation: int) -> None:
    # Places where much is under way: in the middle of both lives, and at the end of the second.
    end = count_operations()
    for number in (end // 3, end * 2 // 3, end - 2):
        for after in (False, True):
            recoveries = (operation, operation)
            run_simulated(
                lambda r, n=number, a=after, m=recoveries: stop_at(r, n, a, m),
                f"recovery {number} {after} {operation}",
            )


def without_sync(monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    async def append_and_forget(self: SimulatedAppendFile, parts: list[bytes]) -> None:
        steps = [self._append_step(parts)]
        if directory not in self._path:
            steps.append(self._sync_step())
        await self._submit(*steps)

    monkeypatch.setattr(SimulatedAppendFile, "append_and_sync", append_and_forget)


@pytest.mark.slow
@pytest.mark.parametrize("directory", ["/wal/", "/raft/"])
def test_a_forgotten_sync_is_found(monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    without_sync(monkeypatch, directory)
    with pytest.raises((AssertionError, DanubeError, CallRefused)) as found:
        crash_everywhere()
    assert not isinstance(found.value, Unavailable)
    print(directory, "->", str(found.value)[:500])
