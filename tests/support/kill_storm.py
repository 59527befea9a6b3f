"""Clients at work on a real broker that is killed again and again, and all that they saw."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from pydanube.model.policies import FailurePolicy, SubscriptionType
from pydanube.runtime.randomness import SeededRandomness
from pydanube.wire.calls import Channel
from pydanube.wire.grpcio.channel import GrpcioChannel
from tests.support.broker_process import BrokerProcess
from tests.support.checkers import Evidence, Violation, WatchedSubscription, find_violations
from tests.support.history import History
from tests.support.operators import set_failure_policy, until_done
from tests.support.recorded_channel import ClientMemory, RecordedChannel
from tests.support.wire_calls import create_producer, create_topic, send
from tests.support.workloads import Ground, RawConsumer, RawProducer, Temper

TOPIC = "/default/orders"
KEYS = [f"key-{number}" for number in range(7)]
FOR_EVER = 1_000_000
PRODUCERS = 6

_POLICY = FailurePolicy(
    max_redelivery_count=1000,
    ack_timeout_ms=20_000,
    base_redelivery_delay_ms=20,
    max_redelivery_delay_ms=100,
)


@dataclass(frozen=True)
class Plan:
    """One subscription of the topic, and who consumes it."""

    name: str
    kind: SubscriptionType
    consumers: int = 1
    flaky: int = 0
    """How many of a hundred messages are nacked once."""

    @property
    def watched(self) -> WatchedSubscription:
        return WatchedSubscription(TOPIC, self.name, self.kind, in_order=not self.flaky)


PLANS = (
    Plan("exclusive", "Exclusive"),
    Plan("failover", "Failover", consumers=2),
    Plan("shared", "Shared", consumers=3, flaky=10),
    Plan("keyed", "KeyShared", consumers=2, flaky=10),
)


class KillStorm:
    """Lets producers and consumers of all four kinds work while a running broker is killed.

    With `in_order` it is asked to stop instead, and must end with exit code 0.
    """

    def __init__(self, broker: BrokerProcess, seed: str, *, in_order: bool = False) -> None:
        self.broker = broker
        self._seed = seed
        self._in_order = in_order
        self._chance = SeededRandomness(f"{seed} kills")
        self._history = History()
        self._memories: dict[str, ClientMemory] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self.kills = 0

    async def run(self, kills: int, drain_seconds_max: float = 60.0) -> list[Violation]:
        """Live through it, let all come to rest, and return what should not have happened."""
        self._history.boot += 1
        try:
            producers = await self._set_up()
            for _ in range(kills):
                await self._kill_and_restart()
            await asyncio.sleep(0.5)
            for producer in producers:
                producer.cancel()
            await asyncio.gather(*producers, return_exceptions=True)
            evidence = Evidence(
                self._history, subscriptions=[plan.watched for plan in PLANS], restarts=self.kills
            )
            evidence.logs[TOPIC] = await self._drain(drain_seconds_max)
        finally:
            await self._end_clients()
        return find_violations(evidence)

    @property
    def figures(self) -> str:
        history = self._history
        acknowledged = sum(send.outcome == "ok" for send in history.sends)
        acked = sum(ack.outcome == "ok" for ack in history.acks)
        return (
            f"{self.kills} kills, {acknowledged} of {len(history.sends)} sends acknowledged, "
            f"{len(history.deliveries)} deliveries, {acked} acks answered, "
            f"{len(history.nacks)} nacks"
        )

    # The course of events.

    async def _set_up(self) -> list[asyncio.Task[Any]]:
        admin = GrpcioChannel(self.broker.admin_url)
        await until_done(lambda: create_topic(admin, TOPIC, "Reliable"))
        for plan in PLANS:
            await set_failure_policy(admin, TOPIC, plan.name, _POLICY)
        await admin.close()
        consumers = [self._consumer(plan, n) for plan in PLANS for n in range(plan.consumers)]
        for consumer in consumers:
            self._start(consumer.run())
        await asyncio.gather(*(consumer.subscribed.wait() for consumer in consumers))
        return [self._start(self._producer(number).run()) for number in range(PRODUCERS)]

    async def _kill_and_restart(self) -> None:
        chance = self._chance
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        await self._kill()
        while not self._in_order and chance.below(6) == 0:
            # A broker that is only just starting can be killed too.
            self.broker.start(wait=False)
            await asyncio.sleep(chance.uniform(0.0, 0.6))
            await self._kill()
        self._history.boot += 1
        await asyncio.to_thread(self.broker.start)

    async def _kill(self) -> None:
        end = self.broker.terminate if self._in_order else self.broker.kill
        code = await asyncio.to_thread(end)
        assert code == (0 if self._in_order else -9), self.broker.log_tail()
        self.kills += 1

    async def _drain(self, seconds_max: float) -> dict[int, str]:
        """Wait until every subscription has settled all there is; return all there is."""
        channel = self._channel("closer")
        producer = await create_producer(channel, TOPIC, "closer", "Reliable")
        end = await send(channel, TOPIC, producer, "closer", "end", KEYS[0])
        audit = RawConsumer(self._ground("audit"), TOPIC, "audit", "audit", "Exclusive", Temper(""))
        self._start(audit.run())
        log: dict[int, str] = {}
        waiting = {plan.name for plan in PLANS}
        try:
            async with asyncio.timeout(seconds_max):
                while waiting or len(log) <= end:
                    await asyncio.sleep(0.2)
                    log = {
                        each.offset: each.value
                        for each in self._history.deliveries
                        if each.subscription == "audit"
                    }
                    waiting = {name for name in waiting if not self._has_settled(name, end)}
        except TimeoutError:
            pass  # What is missing is for the checkers to say.
        finally:
            await channel.close()
        return log

    def _has_settled(self, subscription: str, end: int) -> bool:
        acked = {
            ack.offset
            for ack in self._history.acks
            if ack.subscription == subscription and ack.outcome == "ok"
        }
        return len(acked) > end

    async def _end_clients(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Clients.

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    def _consumer(self, plan: Plan, number: int) -> RawConsumer:
        name = f"{plan.name}-{number}"
        return RawConsumer(
            self._ground(name),
            TOPIC,
            plan.name,
            name,
            plan.kind,
            Temper(plan.name, flaky=plan.flaky),
            think_seconds=0.01,
        )

    def _producer(self, number: int) -> RawProducer:
        return RawProducer(
            self._ground(f"producer-{number}"),
            TOPIC,
            f"producer-{number}",
            "Reliable",
            count=FOR_EVER,
            keys=KEYS,
            at_once=3,
            pause_seconds=0.02,
        )

    def _ground(self, client: str) -> Ground:
        return Ground(
            open_channel=lambda: self._channel(client),
            randomness=SeededRandomness(f"{self._seed} {client}"),
            restless=False,
        )

    def _channel(self, client: str) -> Channel:
        memory = self._memories.setdefault(client, ClientMemory())
        return RecordedChannel(GrpcioChannel(self.broker.url), self._history, client, memory)
