"""A whole cluster by seed: brokers on machines that fail, clients that go on, and laws that hold.

    ClusterWorld(seed).check()

raises AssertionError with all violations, the command that replays exactly this seed, and the last
part of what happened. The same seed does the same steps, in every process.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from traceback import format_exception
from typing import Any

from msgspec.structs import replace

from pydanube.broker import broker as broker_module
from pydanube.broker.config import (
    AdvertisedListeners,
    BrokerConfig,
    ClusterConfig,
    Listeners,
    MetaStoreConfig,
    Ports,
)
from pydanube.client import client as client_module
from pydanube.client.brokers import Surroundings
from pydanube.client.client import Client
from pydanube.client.retry import RetryPolicy
from pydanube.cluster.mirrors.settings import MirrorSettings
from pydanube.metadata.raft_store import RaftStore
from pydanube.model.policies import DispatchStrategy
from pydanube.runtime.files import Files
from pydanube.runtime.randomness import Randomness, SeededRandomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.simulation.network import SimulatedNetwork
from pydanube.storage.config import Durable, StorageConfig
from pydanube.storage.segments.object_store import ObjectStore
from pydanube.topics.topic import Topic
from pydanube.wire.calls import CallRefused, Channel, ExchangeChannel
from tests.support.broker_machine import (
    ADMIN_PORT,
    CLIENT_PORT,
    DATA,
    BrokerMachine,
    simulated_config,
)
from tests.support.checkers import Evidence, Violation, find_violations, unsettled
from tests.support.churn import Churner
from tests.support.cluster_nemesis import ClusterNemesis
from tests.support.cluster_operators import RAFT_PORT, ClusterOperators
from tests.support.cluster_plans import (
    ClusterFaults,
    ClusterPlan,
    FaultName,
    draw_cluster_plan,
    draw_plain_plan,
)
from tests.support.cluster_scribes import Scribes
from tests.support.faulty_store import Cloud, FaultyStore
from tests.support.following_channel import FollowingChannel
from tests.support.history import History
from tests.support.operators import set_failure_policy, until_done
from tests.support.owners import Owners
from tests.support.plain_engine import PlainChannel
from tests.support.plans import CLIENT_HOSTS, DEAD_LETTERS, pick
from tests.support.population import AUDIT, Population
from tests.support.recorded_channel import ClientMemory, RecordedChannel
from tests.support.rough_wire import COURIER, RoughWire
from tests.support.wire_calls import create_producer, create_topic, send
from tests.support.world import Outcome

LEASE_MS = 1_000
TIMES = ClusterConfig(lease_ms=LEASE_MS, heartbeat_ms=100, election_ms=400)
MIRRORS = MirrorSettings(patience_ms=600, join_ms=1_500, retry_ms=400)

DRIFT_MAX = 0.1
"""By so much a clock is faster or slower than it should be: more than real ones, and still less
than leases allow for."""

SETUP_SECONDS_MAX = 60.0
PUBLISH_SECONDS_MAX = 300.0
SERVED_SECONDS_MAX = 40.0
"""After everything is healed, so long a topic may take until it takes a message again."""
DRAIN_SECONDS_MAX = 120.0
SECONDS_MAX = 1_000.0
STEPS_MAX = 1_500_000
_STALL_SECONDS = 8.0

REPLAY = (
    "DANUBE_SEED_START={seed} DANUBE_CLUSTER_SEEDS=1 "
    "pytest tests/simulation/test_cluster.py -k seeds -n0"
)


class ClusterPopulation(Population):
    """Clients that look topics up, and follow them from broker to broker."""

    def __init__(self, world: "ClusterWorld") -> None:
        super().__init__(world.seed, world.network, world.history, restless=world.faults.any)
        self._world = world
        self._of_brokers = 0

    def _brokers(self) -> list[str]:
        return list(self._world.machines)

    def channel(self, client: str, port: int = CLIENT_PORT) -> Channel:
        host = self._host(client)
        following = FollowingChannel(
            lambda name: PlainChannel(host, name, port),
            self._brokers,
            self._chance(f"brokers of {client}"),
            looks_up=port == CLIENT_PORT,
        )
        return self._recorded(following, client, lambda: following.place)

    def _host(self, client: str) -> Any:
        return self._network.host(pick(self._chance(f"host of {client}"), CLIENT_HOSTS))

    def _recorded(
        self, channel: ExchangeChannel, client: str, server: Callable[[], str] = str
    ) -> RecordedChannel:
        memory = self._memories.setdefault(client, ClientMemory())
        return RecordedChannel(channel, self._history, client, memory, server)

    def client_at(self, machine: str) -> Client:
        """Return a client on a broker's own machine; what it says is not recorded."""
        host = self._network.host(machine)
        self._of_brokers += 1

        def open_channel(url: str) -> PlainChannel:
            return PlainChannel(host, url.removeprefix("http://").partition(":")[0], CLIENT_PORT)

        surroundings = Surroundings(
            open_channel=open_channel,
            clock=SimulatedClock(),
            randomness=self._chance(f"client of {machine}, {self._of_brokers}"),
            retry=RetryPolicy(),
        )
        return Client([f"http://{machine}:{CLIENT_PORT}"], surroundings)

    def _client(self, client: str) -> Client:
        def open_channel(url: str) -> RecordedChannel:
            name = url.removeprefix("http://").partition(":")[0]
            channel = PlainChannel(self._host(client), name, CLIENT_PORT)
            return self._recorded(channel, client)

        surroundings = Surroundings(
            open_channel=open_channel,
            clock=SimulatedClock(),
            randomness=self._chance(f"client {client}"),
            retry=RetryPolicy(),
        )
        return Client([f"http://{name}:{CLIENT_PORT}" for name in self._brokers()], surroundings)


def _chance(seed: int, purpose: str) -> Randomness:
    return SeededRandomness(f"cluster {seed} {purpose}")


class ClusterWorld:
    """Brokers, each restarted as often as need be; clients of all kinds; a nemesis."""

    def __init__(
        self,
        seed: int,
        faults: ClusterFaults | None = None,
        plan: ClusterPlan | None = None,
    ) -> None:
        self.seed = seed
        self.faults = faults if faults is not None else ClusterFaults.drawn(self.chance("faults"))
        self.plan = plan or draw_cluster_plan(self.chance("plan"))
        self.outcome = Outcome(seed, replay=REPLAY)
        self.history = History(note=self.note)
        self.machines: dict[str, BrokerMachine] = {}
        self._all_machines: list[BrokerMachine] = []
        self._evidence = Evidence(
            self.history, calm=not self.faults.any, remembers_sessions=not self.faults.clock
        )
        self._ends: dict[str, int] = {}
        self._stores: list[tuple[Files, FaultyStore]] = []
        self._clients: list[asyncio.Task[Any]] = []
        self._churner: Churner | None = None

    @classmethod
    def plain(cls, seed: int, *faults: FaultName, **changes: Any) -> "ClusterWorld":
        """Return a world without what came later: its seed does what it did when it was found.

        Without names, the seed draws the faults. The plan may be changed.
        """
        drawn = ClusterFaults.drawn(_chance(seed, "faults"))
        return cls(
            seed,
            ClusterFaults.only(*faults)
            if faults
            else dataclasses.replace(
                drawn, calls=False, drift=False, unheard=False, unsure=False, sick_disk=False
            ),
            dataclasses.replace(draw_plain_plan(_chance(seed, "plan")), **changes),
        )

    def check(self) -> Outcome:
        """Live through it; raise AssertionError if any law was broken."""
        outcome = self.run()
        assert not outcome.violations, outcome.report()
        return outcome

    def run(self) -> Outcome:
        """Live through it and tell what was found; whatever fails is a violation too."""
        self._owners = Owners(self._name_of, self._begun)
        try:
            with self._owners.watching():
                run_simulated(
                    self._main,
                    f"cluster {self.seed}",
                    seconds_max=SECONDS_MAX,
                    steps_max=STEPS_MAX,
                )
        except Exception as error:
            self._complain("failed", "".join(format_exception(error)))
        else:
            self.outcome.violations += find_violations(self._evidence)
            self.outcome.violations += self._scribes.violations()
        self.outcome.violations += self._owners.violations
        self.outcome.operations = self.history.operations
        return self.outcome

    def chance(self, purpose: str) -> Randomness:
        return _chance(self.seed, purpose)

    def note(self, text: str) -> None:
        self.outcome.trace.append(f"{asyncio.get_running_loop().time():9.4f} {text}")

    def _complain(self, law: str, text: str) -> None:
        self.outcome.violations.append(Violation(law, text))

    def _name_of(self, clock: object) -> str:
        for machine in self._all_machines:
            if machine.clock is clock:
                return machine.name
        return "a broker that is dead"

    # The course of events.

    async def _main(self, randomness: Randomness) -> None:
        self.network = SimulatedNetwork(
            self.chance("network"), connect_seconds=1.0, stall_seconds=_STALL_SECONDS
        )
        self._cloud = Cloud(self.chance("cloud"))
        self._wire = RoughWire(self.network.host(COURIER), self.chance("wire"))
        for number in range(1, self.plan.brokers + 1):
            self.add_machine(f"b{number}")
        self._people = ClusterPopulation(self)
        self._operators = ClusterOperators(self, self.chance("operators"))
        self.nemesis = ClusterNemesis(
            self.faults,
            self.machines,
            self.network,
            self._cloud,
            self._wire,
            self._operators,
            self.chance("nemesis"),
            self.note,
            self.plan.gap_seconds,
        )
        first = next(iter(self.machines.values()))
        with self._shared_store(), self._clients_of_brokers(), first.listening_to_logs():
            try:
                await self._live()
            finally:
                await self._end_clients()
                self._watch_the_end()
                await self._close_machines()
                await self._wire.close()

    def add_machine(self, name: str, *, joins: bool = False) -> BrokerMachine:
        disk = SimulatedDisk(self.chance(f"disk of {name}"))
        machine = BrokerMachine(
            self._config(name, joins=joins),
            disk,
            self.network,
            self.chance(f"machine {name}"),
            self.note,
            name=name,
            wire=self._wire,
            clock_rate=self._clock_rate(name),
        )
        machine.on_boot = self._booted
        machine.on_death = lambda: self._cut_from_store(machine)
        self.machines[name] = machine
        self._all_machines.append(machine)
        return machine

    def _clock_rate(self, name: str) -> float:
        if not self.faults.drift:
            return 1.0
        return 1.0 + self.chance(f"clock of {name}").uniform(-DRIFT_MAX, DRIFT_MAX)

    def _cut_from_store(self, machine: BrokerMachine) -> None:
        """A dead broker reaches no segments either."""
        for files, store in self._stores:
            if files is machine.files:
                store.die()

    def _booted(self) -> None:
        self._begun()
        self.outcome.boots += 1

    def _begun(self) -> None:
        """From now on some topic's owner has delivered nothing: nacks of earlier messages lapse."""
        self.history.boot += 1

    def _config(self, name: str, *, joins: bool) -> BrokerConfig:
        plan = self.plan
        config = simulated_config(
            file_bytes_max=plan.file_bytes_max,
            tail_cache_bytes_max=1_000_000,
            segments=plan.segments,
        )
        url = f"http://{name}:{CLIENT_PORT}"
        seeds = tuple(f"b{number}:{RAFT_PORT}" for number in range(1, plan.brokers + 1))
        return replace(
            config,
            cluster_name="SIMULATED",
            broker=Listeners(
                host="0.0.0.0",
                ports=Ports(client=CLIENT_PORT, admin=ADMIN_PORT, raft=RAFT_PORT),
                advertised_listeners=AdvertisedListeners(broker_url=url, connect_url=url),
            ),
            meta_store=MetaStoreConfig(data_dir=f"{DATA}/raft", seed_nodes=seeds, join=joins),
            storage=replace(config.storage, mode="shared_fs", durable=Durable(root="/shared")),
            cluster=TIMES,
            mirrors=replace(MIRRORS, replicas=plan.replicas),
        )

    @contextmanager
    def _shared_store(self) -> Iterator[None]:
        """Let the segments of all brokers lie in one store."""

        def open_store(_: StorageConfig, files: Files) -> ObjectStore:
            store = FaultyStore(self._cloud)
            self._stores.append((files, store))
            return store

        before = broker_module.open_store
        broker_module.open_store = open_store
        try:
            yield
        finally:
            broker_module.open_store = before

    @contextmanager
    def _clients_of_brokers(self) -> Iterator[None]:
        """Let brokers that are clients of others, for dead letters, live in this network."""

        async def connect(url: str) -> Client:
            name = url.removeprefix("http://").partition(":")[0]
            return self._people.client_at(name)

        before = client_module.connect
        client_module.connect = connect  # type: ignore[assignment]
        try:
            yield
        finally:
            client_module.connect = before

    async def _live(self) -> None:
        async with asyncio.timeout(SETUP_SECONDS_MAX):
            started = await asyncio.gather(*(each.start() for each in self.machines.values()))
            assert all(started), "the first start failed"
            await self._create_topics()
            await self._let_consumers_in()
        self._start(self.nemesis.keep_running(), "supervisor")
        self._scribes = Scribes(self._metadata, self.chance("scribes"), self.note)
        writing = [self._start(self._scribes.run(), "scribe") for _ in range(self._scribes_count)]
        producers = [
            self._start(
                self._people.producer(topic, plan).run(), f"producer {topic.name} {plan.name}"
            )
            for topic in self.plan.topics
            for plan in topic.producers
        ]
        churning = self._start_churner()
        async with asyncio.timeout(PUBLISH_SECONDS_MAX):
            await self.nemesis.run(self.plan.seconds)
            self._start(self._operators.activate_all(), "operator")
            await self._expect_service()
            await asyncio.gather(*producers, *churning)
            for scribe in writing:
                scribe.cancel()
            await self._scribes.read_all()
        await self._drain()

    def _start_churner(self) -> list[asyncio.Task[None]]:
        if not self.plan.churns:
            return []
        self._churner = self._people.churner(knows_at_once=False)
        return [self._start(self._churner.run(2), "churner")]

    @property
    def _scribes_count(self) -> int:
        return 2 if self.plan.scribes else 0

    def _metadata(self) -> list[RaftStore]:
        """Return the metadata as every broker has it that serves."""
        return [
            machine.server._broker._serving.opened.raft
            for machine in self.machines.values()
            if machine.server is not None and machine.server._broker._serving is not None
        ]

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

    async def _close_machines(self) -> None:
        for machine in self._all_machines:
            if machine.server is not None or machine.is_busy:
                machine.kill()
        for machine in self._all_machines:
            await machine.close()
            for text in machine.complaints:
                self._complain("broker", text)
        self.outcome.faults = {**self.nemesis.injected, **self._wire.told()}
        # A topic that changes hands is to its new owner what a restart is to a broker.
        self._evidence.restarts = self.outcome.boots - self.plan.brokers + self.faults.any

    # Setting up.

    async def _create_topics(self) -> None:
        admin = self._people.channel("operator", ADMIN_PORT)
        for topic in self.plan.topics:
            name = topic.name
            strategy: DispatchStrategy = "Reliable" if topic.reliable else "NonReliable"
            await until_done(
                lambda name=name, strategy=strategy: create_topic(admin, name, strategy)  # type: ignore[misc]
            )
            for subscription in topic.subscriptions:
                policy = subscription.policy
                if policy is None:
                    continue
                await until_done(
                    lambda name=name, sub=subscription.name, policy=policy: set_failure_policy(  # type: ignore[misc]
                        admin, name, sub, policy
                    )
                )
        await admin.close()

    async def _let_consumers_in(self) -> None:
        arrivals = []
        for topic in self.plan.topics:
            for subscription in topic.subscriptions:
                if topic.reliable:
                    self._evidence.subscriptions.append(subscription.watched(topic.name))
                else:
                    self._evidence.best_effort.append((topic.name, subscription.name))
                for plan in subscription.consumers:
                    consumer = self._people.consumer(topic, subscription, plan)
                    self._start(consumer.run(), f"consumer {subscription.name} {plan.name}")
                    arrivals.append(consumer.subscribed)
        for arrival in arrivals:
            await arrival.wait()

    # The end.

    async def _expect_service(self) -> None:
        """All is healed: within bounded time every topic takes a message, and confirms it."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        closing = [
            self._start(self._close_topic(each.name), "closer") for each in self.plan.reliable
        ]
        _, late = await asyncio.wait(closing, timeout=SERVED_SECONDS_MAX)
        if late:
            self._complain("not served", f"{len(late)} topics, {SERVED_SECONDS_MAX:g} s after")
            raise AssertionError("a topic is not served although everything is healed")
        self.note(f"served again after {loop.time() - began:.2f} s")

    async def _close_topic(self, name: str) -> None:
        self._ends[name] = await self._send_last(name, "served")

    async def _send_last(self, topic: str, word: str) -> int:
        """Send until one is acknowledged."""
        channel = self._people.channel(f"closer of {topic}")
        number = 0
        try:
            while True:
                number += 1
                try:
                    producer = await create_producer(channel, topic, "closer", "Reliable")
                    value = f"end.{word}.{topic.rpartition('/')[2]}.{number}"
                    return await send(channel, topic, producer, "closer", value, key="cat")
                except CallRefused:
                    await asyncio.sleep(0.3)
        finally:
            await channel.close()

    async def _drain(self) -> None:
        """Let everything come to rest, then read all there is once more."""
        self.note("draining")
        for topic in self.plan.reliable:
            self._ends[topic.name] = await self._send_last(topic.name, "last")
            self._start(self._people.auditor(topic.name).run(), f"auditor of {topic.name}")
        if self.plan.has_dead_letters:
            self._start(self._people.auditor(DEAD_LETTERS).run(), "auditor of dead letters")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DRAIN_SECONDS_MAX
        while loop.time() < deadline:
            await asyncio.sleep(0.3)
            if self._is_drained():
                return
        self.note("gave up draining")

    def _is_drained(self) -> bool:
        self._read_audits()
        evidence = self._evidence
        return (
            all(end in evidence.logs[topic] for topic, end in self._ends.items())
            and not any(unsettled(evidence, each) for each in evidence.subscriptions)
            and not any(self._lags())
        )

    def _read_audits(self) -> None:
        logs: dict[str, dict[int, str]] = {topic.name: {} for topic in self.plan.reliable}
        letters = []
        for delivery in self.history.deliveries:
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
        for topic, end in self._ends.items():
            if end not in self._evidence.logs[topic]:
                self._complain("stuck", f"{topic} was never read up to its end, {end}")
        if self._churner is not None:
            self.outcome.violations += self._churner.violations
        for lag in self._lags():
            self._complain("lag", lag)

    def _lags(self) -> Iterator[str]:
        """Return which subscriptions have something left to do, as their brokers see it."""
        for plan in self.plan.reliable:
            topic = self._served(plan.name)
            if topic is None:
                yield f"{plan.name} is served by nobody"
                continue
            for subscription in topic.subscriptions.values():
                if subscription.lag:
                    yield (
                        f"{topic.name} {subscription.name} is {subscription.lag} messages behind, "
                        f"cursor {subscription.cursor}"
                    )

    def _served(self, name: str) -> Topic | None:
        for machine in self.machines.values():
            serving = machine.server._broker._serving if machine.server is not None else None
            topic = serving.topics.find(name) if serving is not None else None
            if topic is not None:
                return topic
        return None
