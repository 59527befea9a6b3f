"""A whole world by seed: a broker on a machine that fails, clients that go on, and laws that hold.

    World(seed).check()

raises AssertionError with all violations, the command that replays exactly this seed, and the last
part of what happened. The same seed does the same steps, in every process.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from traceback import format_exception
from typing import Any

from pydanube.model.policies import FailurePolicy
from pydanube.runtime.randomness import Randomness, SeededRandomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.simulation.network import SimulatedNetwork
from pydanube.wire.calls import CallRefused, Channel
from tests.support.broker_machine import (
    ADMIN_PORT,
    BrokerMachine,
    simulated_config,
)
from tests.support.checkers import Evidence, Violation, find_violations, unsettled
from tests.support.history import History
from tests.support.nemesis import Faults, Nemesis
from tests.support.operators import (
    create_partitioned_topic,
    set_failure_policy,
    until_done,
)
from tests.support.plans import (
    CLIENT_HOSTS,
    DEAD_LETTERS,
    SubscriptionPlan,
    TopicPlan,
    WorldPlan,
    draw_plan,
)
from tests.support.population import AUDIT, Population
from tests.support.shrunken import shrunken
from tests.support.wire_calls import create_producer, create_topic, send

DRAIN_SECONDS_MAX = 400.0
SETUP_SECONDS_MAX = 60.0
PUBLISH_SECONDS_MAX = 1_000.0
SECONDS_MAX = 5_000.0
STEPS_MAX = 400_000
TRACE_SHOWN = 120
_STALL_SECONDS = 8.0

REPLAY = (
    "DANUBE_SEED_START={seed} DANUBE_SEEDS=1 pytest tests/simulation/test_world.py -k seeds -n0"
)


@dataclass
class Outcome:
    """What became of one world."""

    seed: int
    violations: list[Violation] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    boots: int = 0
    operations: int = 0
    steps: int = 0
    replay: str = REPLAY

    def report(self) -> str:
        """Say what was wrong, how to see it again, and what happened last."""
        lines = [
            f"seed {self.seed}: {len(self.violations)} violations",
            *(f"  {violation}" for violation in self.violations[:20]),
            f"replay: {self.replay.format(seed=self.seed)}",
            f"the last of {len(self.trace)} lines of trace:",
            *(f"  {line}" for line in self.trace[-TRACE_SHOWN:]),
        ]
        return "\n".join(lines)


class World:
    """One broker, restarted as often as need be; clients of all kinds; a nemesis."""

    def __init__(
        self, seed: int, faults: Faults | None = None, plan: WorldPlan | None = None
    ) -> None:
        self.seed = seed
        self._faults = faults if faults is not None else Faults.drawn(self._chance("faults"))
        self.plan = plan or draw_plan(self._chance("plan"))
        self.outcome = Outcome(seed)
        self._history = History(note=self._note)
        self._evidence = Evidence(self._history, calm=not self._faults.any)
        self._ends: dict[str, int] = {}
        self._clients: list[asyncio.Task[Any]] = []

    def check(self) -> Outcome:
        """Live through it; raise AssertionError if any law was broken."""
        outcome = self.run()
        assert not outcome.violations, outcome.report()
        return outcome

    def run(self) -> Outcome:
        """Live through it and tell what was found; whatever fails is a violation too."""
        try:
            with shrunken(self.plan.limits):
                run_simulated(
                    self._main, f"world {self.seed}", seconds_max=SECONDS_MAX, steps_max=STEPS_MAX
                )
        except Exception as error:
            self._complain("failed", "".join(format_exception(error)))
        else:
            if not self._machine.refused.is_set():
                self.outcome.violations += find_violations(self._evidence)
        outcome = self.outcome
        outcome.operations = self._history.operations
        return outcome

    def _chance(self, purpose: str) -> Randomness:
        return SeededRandomness(f"{self.seed} {purpose}")

    def _note(self, text: str) -> None:
        self.outcome.trace.append(f"{asyncio.get_running_loop().time():9.4f} {text}")

    def _complain(self, law: str, text: str) -> None:
        self.outcome.violations.append(Violation(law, text))

    # The course of events.

    async def _main(self, randomness: Randomness) -> None:
        limits = self.plan.limits
        self._network = SimulatedNetwork(
            self._chance("network"), connect_seconds=5.0, stall_seconds=_STALL_SECONDS
        )
        self._people = Population(
            self.seed, self._network, self._history, restless=self._faults.any
        )
        self._machine = BrokerMachine(
            simulated_config(
                file_bytes_max=limits.file_bytes_max,
                tail_cache_bytes_max=limits.tail_cache_bytes_max,
                window=limits.window,
                segments=limits.segments,
                policies=limits.policies,
            ),
            SimulatedDisk(self._chance("disk")),
            self._network,
            self._chance("machine"),
            self._note,
        )
        self._machine.on_boot = self._booted
        self._nemesis = Nemesis(
            self._faults,
            self._machine,
            self._network,
            CLIENT_HOSTS,
            self._chance("nemesis"),
            self._history,
        )
        with self._machine.listening_to_logs():
            try:
                await self._live_unless_refused()
            finally:
                await self._end_clients()
                if not self._machine.refused.is_set():
                    self._watch_the_end()
                await self._machine.close()
                for text in self._machine.complaints:
                    self._complain("broker", text)
                self.outcome.boots = self._machine.boots
                self.outcome.faults = self._nemesis.injected
                self._evidence.restarts = self._machine.boots - 1

    def _booted(self) -> None:
        self._history.boot += 1

    async def _live_unless_refused(self) -> None:
        """Without a broker there is nothing to wait for."""
        living = asyncio.create_task(self._live(), name="life")
        refused = asyncio.create_task(self._machine.refused.wait(), name="refusal")
        await asyncio.wait([living, refused], return_when=asyncio.FIRST_COMPLETED)
        refused.cancel()
        if self._machine.refused.is_set():
            living.cancel()
        await asyncio.gather(living, refused, return_exceptions=True)
        if not living.cancelled():
            living.result()

    async def _live(self) -> None:
        assert await self._machine.start(), "the first start failed"
        async with asyncio.timeout(SETUP_SECONDS_MAX):
            await self._create_topics()
            await self._let_consumers_in()
        supervising = asyncio.create_task(self._nemesis.keep_running(), name="supervisor")
        self._clients.append(supervising)
        producers = self._start_producers()
        churner = self._start_churner()
        if self.plan.reconfigures:
            self._start(self._people.reconfigurer(self.plan).run(), "reconfigurer")
        async with asyncio.timeout(PUBLISH_SECONDS_MAX):
            await self._nemesis.run(self.plan.seconds)
            await asyncio.gather(*producers)
            if churner is not None:
                await churner
        await self._drain()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._clients.append(task)
        return task

    async def _end_clients(self) -> None:
        for task in self._clients:
            task.cancel()
        results = await asyncio.gather(*self._clients, return_exceptions=True)
        for task, result in zip(self._clients, results, strict=True):
            if isinstance(result, Exception):
                self._complain("client", f"{task.get_name()} failed: {result!r}")

    # Setting up.

    async def _create_topics(self) -> None:
        admin = self._people.channel("operator", ADMIN_PORT)
        for topic in self.plan.topics:
            await until_done(partial(_create_topic, admin, topic))
            for name, subscription in topic.each_subscription():
                if subscription.policy is not None:
                    await self._set_policy(admin, name, subscription, subscription.policy)
        if self.plan.creates_dead_letters:
            await until_done(lambda: create_topic(admin, DEAD_LETTERS, "Reliable"))
        await admin.close()

    async def _set_policy(
        self, admin: Channel, topic: str, subscription: SubscriptionPlan, policy: FailurePolicy
    ) -> None:
        await until_done(lambda: set_failure_policy(admin, topic, subscription.name, policy))

    async def _let_consumers_in(self) -> None:
        arrivals = []
        for topic in self.plan.topics:
            for name, subscription in topic.each_subscription():
                if topic.reliable:
                    self._evidence.subscriptions.append(subscription.watched(name))
                else:
                    self._evidence.best_effort.append((name, subscription.name))
            for subscription in topic.subscriptions:
                for plan in subscription.consumers:
                    consumer = self._people.consumer(topic, subscription, plan)
                    self._start(consumer.run(), f"consumer {subscription.name} {plan.name}")
                    if not plan.is_rival:
                        arrivals.append(consumer.subscribed)
                        if subscription.kind == "Exclusive":
                            await consumer.subscribed.wait()  # Before its rival.
        for arrival in arrivals:
            await arrival.wait()

    def _start_producers(self) -> list[asyncio.Task[None]]:
        return [
            self._start(
                self._people.producer(topic, plan).run(), f"producer {topic.name} {plan.name}"
            )
            for topic in self.plan.topics
            for plan in topic.producers
        ]

    def _start_churner(self) -> asyncio.Task[None] | None:
        if not self.plan.churns:
            return None
        self._churner = self._people.churner()
        return self._start(self._churner.run(2), "churner")

    # The end.

    async def _drain(self) -> None:
        """Let everything come to rest, then read all there is once more."""
        self._note("draining")
        loop = asyncio.get_running_loop()
        chance = self._chance("last power loss")
        last_cuts = []
        if self._faults.power:
            last_cuts = [loop.time() + chance.uniform(0.0, 2.0) for _ in range(chance.below(3))]
        deadline = loop.time() + DRAIN_SECONDS_MAX
        closing = self._start(self._close_topics(), "closer")
        while loop.time() < deadline:
            await asyncio.sleep(0.5)
            if last_cuts and loop.time() >= min(last_cuts):
                last_cuts.remove(min(last_cuts))
                self._machine.cut_power(chance)
            elif closing.done() and not last_cuts and self._is_drained():
                break
        else:
            self._note("gave up draining")

    async def _close_topics(self) -> None:
        admin = self._people.channel("operator", ADMIN_PORT)
        for topic in self.plan.topics:
            for name, subscription in topic.each_subscription():
                policy = subscription.final_policy()
                if policy is not None:
                    await self._set_policy(admin, name, subscription, policy)
            if topic.reliable:
                for name in topic.topics:
                    self._ends[name] = await self._send_last(name)
                    self._start_audit(name)
        await admin.close()
        self._start_audit(DEAD_LETTERS)

    async def _send_last(self, topic: str) -> int:
        """Send until one is acknowledged: it is behind all the others."""
        channel = self._people.channel("closer")
        number = 0
        try:
            while True:
                number += 1
                try:
                    producer = await create_producer(channel, topic, "closer", "Reliable")
                    value = f"end.{topic.rpartition('/')[2]}.{number}"
                    return await send(channel, topic, producer, "closer", value, key="cat")
                except CallRefused:
                    await asyncio.sleep(0.5)
        finally:
            await channel.close()

    def _start_audit(self, topic: str) -> None:
        self._start(self._people.auditor(topic).run(), f"auditor of {topic}")

    def _is_drained(self) -> bool:
        self._read_audits()
        evidence = self._evidence
        return (
            all(end in evidence.logs[topic] for topic, end in self._ends.items())
            and not any(unsettled(evidence, each) for each in evidence.subscriptions)
            and not any(self._lags())
        )

    def _read_audits(self) -> None:
        logs: dict[str, dict[int, str]] = {topic: {} for topic in self._ends}
        letters = []
        for delivery in self._history.deliveries:
            if delivery.subscription != AUDIT:
                continue
            if delivery.topic == DEAD_LETTERS:
                letters.append(delivery)
            else:
                logs[delivery.topic].setdefault(delivery.offset, delivery.value)
        self._evidence.logs.update(logs)
        self._evidence.dead_letters = {DEAD_LETTERS: letters}

    def _watch_the_end(self) -> None:
        self._read_audits()
        for topic in self.plan.topics:
            for name in topic.topics if topic.reliable else ():
                end = self._ends.get(name)
                if end is None or end not in self._evidence.logs[name]:
                    self._evidence.logs.setdefault(name, {})
                    self._complain("stuck", f"{name} was never read up to its end, {end}")
        if self.plan.churns:
            self.outcome.violations += self._churner.violations
        for lag in self._lags():
            self._complain("lag", lag)

    def _lags(self) -> Iterator[str]:
        """Return which subscriptions have something left to do, as the broker sees it."""
        server = self._machine.server
        serving = server._broker._serving if server is not None else None
        if serving is None:
            yield "there is no broker to ask"
            return
        for topic in serving.topics:
            if topic.name not in (*self._ends, DEAD_LETTERS):
                continue
            if AUDIT not in topic.subscriptions:
                yield f"{topic.name} has not been read"
            for subscription in topic.subscriptions.values():
                if subscription.lag:
                    yield (
                        f"{topic.name} {subscription.name} is {subscription.lag} messages behind, "
                        f"cursor {subscription.cursor}"
                    )


async def _create_topic(admin: Channel, topic: TopicPlan) -> None:
    if topic.partitions is not None:
        await create_partitioned_topic(admin, topic.name, topic.partitions)
    else:
        await create_topic(admin, topic.name, "Reliable" if topic.reliable else "NonReliable")
