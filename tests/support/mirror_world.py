"""Brokers' journals that mirror each other, by seed: machines that die, lose their disks and lie
about who they are, a network that cuts, and the law that nothing acknowledged is ever lost.

The metadata is perfect here; owners are not: one that has been replaced goes on until somebody
tells it, and only its mirrors keep it from acknowledging.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec

from pydanube.cluster.records import Assignment, ReplicaSet, encode
from pydanube.errors import DanubeError
from pydanube.metadata import keys
from pydanube.metadata.memory_store import MemoryMetadataStore
from pydanube.metadata.store import Delete, Put
from pydanube.model.ids import BrokerId, Offset, SubscriptionId, TopicId
from pydanube.model.policies import Policies
from pydanube.model.progress import ProgressChange
from pydanube.model.ranges import RangeSet
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.simulation.network import SimulatedNetwork
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.config import LocalRetention, Rotation, Segments, StorageConfig, Wal
from pydanube.storage.journal.records import NOT_WHOLE
from pydanube.topics.catalog import Catalog, SubscriptionRecord, TopicRecord
from tests.support.faulty_store import Cloud
from tests.support.journals import batch_of, payloads_of
from tests.support.mirror_node import TOPICS, Node, Serving

CALM_SECONDS_MAX = 120.0
_RELIEF_SECONDS = 1.0


@dataclass
class Faults:
    """How often what happens; a weight of 0 is never."""

    crash: int = 4
    wipe: int = 3
    cut: int = 3
    move: int = 4
    quiet: int = 3
    slow_disk: int = 2
    wish: int = 0
    """For another number of copies, while the topic is in use."""
    usurp: int = 0
    """A topic is given away while its owner, which hears nothing of that, still has its mirrors."""
    relieve: int = 0
    """A mirror is replaced by one that is cut off while the change is recorded, and then the owner
    dies: whatever it has acknowledged meanwhile must be on either set."""


@dataclass
class Plan:
    brokers: int = 4
    replicas: int = 2
    seconds: float = 8.0
    faults: Faults = field(default_factory=Faults)
    news_seconds: float = 0.6
    """So long an owner may go on that has been replaced."""
    record_seconds: float = 0.2
    """So long it may take to record a set."""


class MirrorWorld:
    def __init__(self, seed: int | str, plan: Plan | None = None) -> None:
        self.seed = seed
        self.plan = plan or Plan()
        self.wanted = self.plan.replicas
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.unexpected: list[BaseException] = []
        self.acked: dict[str, dict[int, bytes]] = {topic: {} for topic in TOPICS}
        self.settled: dict[str, RangeSet] = {topic: RangeSet() for topic in TOPICS}
        self.names: dict[TopicId, str] = {}
        self.records: dict[str, TopicRecord] = {}
        self.nodes: dict[BrokerId, Node] = {}
        self.is_troubled = True
        self.record_seconds = self.plan.record_seconds
        self.last_refusal = ""
        self._sent = 0
        self._wiped: set[BrokerId] = set()
        self._relieving: set[str] = set()
        self.config = StorageConfig(
            wal=Wal(rotation=Rotation(max_bytes=6_000)),
            segments=Segments(seal_seconds=1),
            local_retention=LocalRetention(time_minutes=1, size_mb=1),
        )

    def run(self) -> "MirrorWorld":
        run_simulated(self._main, self.seed, seconds_max=2_000.0, steps_max=1_500_000)
        return self

    def check(self) -> "MirrorWorld":
        """Live through it; raise AssertionError if a law was broken."""
        self.run()
        if self.unexpected:
            raise self.unexpected[0]
        assert not self.violations, f"seed {self.seed}: {self.violations[:5]} {self.counts}"
        return self

    def shuffle(self, brokers: list[BrokerId]) -> None:
        for number in range(len(brokers) - 1, 0, -1):
            other = self.random.below(number + 1)
            brokers[number], brokers[other] = brokers[other], brokers[number]

    async def _main(self, randomness: Randomness) -> None:
        self.random = randomness
        self.network = SimulatedNetwork(randomness, connect_seconds=0.5, stall_seconds=1.0)
        self.cloud = Cloud(randomness)
        self.store = MemoryMetadataStore(SimulatedClock())
        await self._create_topics()
        for number in range(1, self.plan.brokers + 1):
            self.nodes[BrokerId(number)] = Node(self, BrokerId(number))
        for node in self.nodes.values():
            await node.boot()
        for topic in TOPICS:
            await self._assign(topic, self._some_node())
        self._scope = TaskScope(lambda name, error: self.unexpected.append(error))
        self._scope.start(self._publish(), "publish")
        await self._live(self.plan.seconds)
        await self._calm_down()
        await self._scope.close()
        for topic in TOPICS:
            await self._audit(topic)
        for node in self.nodes.values():
            await node.crash()

    async def _create_topics(self) -> None:
        catalog = Catalog(self.store)
        await catalog.create_namespace("default", Policies())
        for number, topic in enumerate(TOPICS, 1):
            record = TopicRecord(id=TopicId(number), strategy="Reliable", created_ms=0)
            await catalog.create_topic(topic, "default", record)
            subscription = SubscriptionRecord(id=SubscriptionId(number), kind="Shared", start=0)
            await catalog.put_subscription(topic, "all", subscription)
            self.names[record.id], self.records[topic] = topic, record

    # Clients.

    async def _publish(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.001, 0.06))
            for node in list(self.nodes.values()):
                for topic, serving in list(node.serving.items()):
                    if self.random.below(3):
                        self._send(topic, node, serving)
                    if self.random.below(4) == 0:
                        self._settle(topic, node, serving)

    def _send(self, topic: str, node: Node, serving: Serving) -> None:
        payloads = []
        clock = node.clock
        for _ in range(1 + self.random.below(3)):
            self._sent += 1
            payloads.append(b"%d" % self._sent + b"." * self.random.below(200))
        base = -1

        def done(error: DanubeError | None) -> None:
            if error is None and clock.alive:
                for offset, payload in enumerate(payloads, base):
                    self._acked(topic, offset, payload)

        with suppress(DanubeError):
            base = serving.log.append(batch_of(*payloads), done)

    def _acked(self, topic: str, offset: int, payload: bytes) -> None:
        self.counts["acked"] += 1
        before = self.acked[topic].setdefault(offset, payload)
        if before != payload:
            self.violations.append(f"offset {offset} of {topic} was acknowledged twice")

    def _settle(self, topic: str, node: Node, serving: Serving) -> None:
        end = int(serving.log.durable_end)
        if end == 0 or node.storage is None:
            return
        start = self.random.below(end)
        clock = node.clock

        def done(error: DanubeError | None) -> None:
            if error is None and clock.alive:
                self.counts["settled"] += 1
                self.settled[topic].add(start, start + 1)

        node.storage.append_progress(
            SubscriptionId(serving.log.topic_id),
            ProgressChange(settled=((start, start + 1),)),
            done,
        )

    # Faults.

    async def _live(self, seconds: float) -> None:
        faults = self.plan.faults
        kinds = (
            [self._crash] * faults.crash
            + [self._wipe] * faults.wipe
            + [self._cut] * faults.cut
            + [self._move] * faults.move
            + [self._quiet] * faults.quiet
            + [self._slow_disk] * faults.slow_disk
            + [self._wish] * faults.wish
            + [self._usurp] * faults.usurp
            + [self._relieve] * faults.relieve
        )
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(self.random.uniform(0.01, 0.5))
            await kinds[self.random.below(len(kinds))]()

    def _some_node(self) -> Node:
        alive = [node for node in self.nodes.values() if node.storage is not None]
        choice = alive or list(self.nodes.values())
        return choice[self.random.below(len(choice))]

    async def _quiet(self) -> None:
        await asyncio.sleep(self.random.uniform(0.1, 2.0))

    async def _crash(self) -> None:
        node = self._some_node()
        if node.storage is not None:
            self.counts["crashes"] += 1
            await node.crash()
            self._scope.start(self._later_boot(node), "boot")

    async def _later_boot(self, node: Node) -> None:
        await asyncio.sleep(self.random.uniform(0.0, 1.5))
        if self.random.below(2):
            # The owner is replaced while it is away, or before it knows that it was away.
            for topic in TOPICS:
                if self._owner(topic) is node:
                    await self._assign(topic, self._some_node())
        await node.boot()

    async def _wipe(self) -> None:
        """Take one disk away, if all others are whole and its loss is covered."""
        self._forgive()
        node = self._some_node()
        sets = [self._replicas(topic) for topic in TOPICS]
        bare = any(len(each.members) == 1 and node.broker in each.members for each in sets if each)
        if self._wiped or bare or node.storage is None or self._is_changing():
            return
        self.counts["wipes"] += 1
        self._wiped.add(node.broker)
        await node.crash(wipe=True)
        self._scope.start(self._later_boot(node), "boot")

    def _forgive(self) -> None:
        """Let a disk count as whole again once its copies are, or nobody counts on them."""
        for broker in list(self._wiped):
            for topic in TOPICS:
                replicas = self._replicas(topic)
                if replicas is None or broker not in replicas.members:
                    continue
                owner = self._owner(topic)
                serving = owner.serving.get(topic) if owner is not None else None
                if serving is None or serving.epoch != replicas.epoch:
                    break
                copies = serving.replicated
                if copies is None or broker == replicas.members[0]:
                    continue
                # The owner may believe in a copy that was lost a moment ago.
                if broker in copies.state.behind or not self._holds_copy(broker, topic, serving):
                    break
            else:
                self._wiped.discard(broker)

    def _holds_copy(self, broker: BrokerId, topic: str, serving: Serving) -> bool:
        """Tell whether a broker's disk has a whole copy of what is served, for good."""
        storage, copies = self.nodes[broker].storage, serving.replicated
        if storage is None or copies is None:
            return False
        index = storage.mirrors._contents.topics.get(self.records[topic].id)
        writer = storage.mirrors._writer
        return (
            index is not None
            and index.copy is not None
            and (index.epoch, index.copy.stream) == (serving.epoch, copies.stream.stream)
            and index.copy.sequence != NOT_WHOLE
            and writer.durable >= writer.written
        )

    def _is_changing(self) -> bool:
        return any(
            serving.replicated is not None and serving.replicated.is_changing
            for node in self.nodes.values()
            for serving in node.serving.values()
        ) or any(node.opening for node in self.nodes.values())

    async def _cut(self) -> None:
        names = [node.name for node in self.nodes.values()]
        one, other = self._some_node().name, names[self.random.below(len(names))]
        if one == other:
            return
        self.counts["cuts"] += 1
        if self.random.below(2):
            self.network.cut_both_ways(one, other)
        else:
            self.network.cut(one, other)
        asyncio.get_running_loop().call_later(
            self.random.uniform(0.1, 2.5), lambda: self.network.mend(one, other)
        )

    async def _move(self) -> None:
        await self._assign(TOPICS[self.random.below(len(TOPICS))], self._some_node())

    async def _wish(self) -> None:
        self.wanted = 1 + self.random.below(3)

    async def _usurp(self) -> None:
        """Give a topic to a broker that reaches the mirrors and not the owner; restart some."""
        topic = TOPICS[self.random.below(len(TOPICS))]
        owner, replicas = self._owner(topic), self._replicas(topic)
        if owner is None or replicas is None or topic not in owner.serving:
            return
        heirs = [
            node
            for node in self.nodes.values()
            if node.broker not in replicas.members and node.storage is not None
        ]
        if not heirs:
            return
        heir = heirs[self.random.below(len(heirs))]
        self.network.cut_both_ways(owner.name, heir.name)
        asyncio.get_running_loop().call_later(
            self.plan.news_seconds, lambda: self.network.mend(owner.name, heir.name)
        )
        await self._assign(topic, heir)
        if self.random.below(2):
            await asyncio.sleep(self.random.uniform(0.05, 0.4))
            for member in replicas.members[1:]:
                if self.nodes[member].storage is not None:
                    await self.nodes[member].crash()
                    await self.nodes[member].boot()
        await asyncio.sleep(self.plan.news_seconds / 2)

    async def _relieve(self) -> None:
        """Ask the owner of a topic to let another broker take the place of a mirror."""
        topic = TOPICS[self.random.below(len(TOPICS))]
        owner = self._owner(topic)
        serving = owner.serving.get(topic) if owner is not None else None
        if serving is None or serving.replicated is None or serving.replicated.is_changing:
            return
        mirrors = serving.replicated.state.members[1:]
        if mirrors:
            self._relieving.add(topic)
            serving.replicated.replace(mirrors[self.random.below(len(mirrors))])
            await asyncio.sleep(self.random.uniform(0.5, 1.5))
            self._relieving.discard(topic)

    def cut_off_newcomers(self, topic: str, owner: Node, members: Sequence[BrokerId]) -> bool:
        """Let new members of a set that is about to be recorded miss what follows, if told to."""
        recorded = self._replicas(topic)
        if topic not in self._relieving or recorded is None:
            return False
        self._relieving.discard(topic)
        for broker in members:
            if broker not in recorded.members:
                newcomer = self.nodes[broker].name
                self.network.cut_both_ways(owner.name, newcomer)
                asyncio.get_running_loop().call_later(
                    _RELIEF_SECONDS, partial(self.network.mend, owner.name, newcomer)
                )
        return True

    def strike(self, topic: str, owner: Node) -> None:
        """Let the owner of a set that has just been recorded die, and others take its place."""

        async def die() -> None:
            await asyncio.sleep(self.random.uniform(0.0, 0.05))
            if owner.storage is None:
                return
            self.counts["owners struck"] += 1
            await owner.crash()
            if self._owner(topic) is owner:
                await self._assign(topic, self._some_node())
            await asyncio.sleep(_RELIEF_SECONDS)
            await owner.boot()

        self._scope.start(die(), f"end of {owner.name}")

    async def _slow_disk(self) -> None:
        node = self._some_node()
        disk = node.disk
        disk.slow("sync", self.random.uniform(0.01, 0.8))
        asyncio.get_running_loop().call_later(
            self.random.uniform(0.1, 2.0), lambda: disk.slow("sync", 0.0)
        )

    def _owner(self, topic: str) -> Node | None:
        for node in self.nodes.values():
            if self.store.get(keys.assignment(node.broker, topic)) is not None:
                return node
        return None

    def _replicas(self, topic: str) -> ReplicaSet | None:
        entry = self.store.get(keys.replicas(topic))
        return msgspec.json.decode(entry.value, type=ReplicaSet) if entry is not None else None

    async def _assign(self, topic: str, node: Node) -> None:
        """Give a topic to a broker without asking anybody."""
        owner = self._owner(topic)
        if owner is node:
            return
        self.counts["moves"] += 1
        key = keys.assignment(node.broker, topic)
        operations: list[Put | Delete] = [Put(key, encode(Assignment(reason="failover")))]
        if owner is not None:
            operations.append(Delete(keys.assignment(owner.broker, topic)))
        await self.store.transact([], operations)

    # The end.

    async def _calm_down(self) -> None:
        self.is_troubled = False
        self.record_seconds = 0.02
        self.network.heal()
        for node in self.nodes.values():
            node.disk.slow("sync", 0.0)
            await node.boot()
        try:
            async with asyncio.timeout(CALM_SECONDS_MAX):
                await asyncio.sleep(3.0)  # Whoever is to be started late is by then.
                for topic in TOPICS:
                    while not self._is_served(topic):
                        await asyncio.sleep(0.1)
        except TimeoutError:
            self.violations.append(f"not served in calm: {self.last_refusal}")

    def _is_served(self, topic: str) -> bool:
        owner = self._owner(topic)
        serving = owner.serving.get(topic) if owner is not None else None
        if serving is None or owner is None:
            return False
        entry = self.store.get(keys.assignment(owner.broker, topic))
        copies, recorded = serving.replicated, self._replicas(topic)
        return (
            entry is not None
            and entry.revision == serving.epoch
            and recorded is not None
            and len(recorded.members) == self.wanted
            and (copies is None or not copies.state.behind)
        )

    async def _audit(self, topic: str) -> None:
        owner = self._owner(topic)
        if owner is None or topic not in owner.serving or owner.storage is None:
            return
        log = owner.serving[topic].log
        found: dict[int, bytes] = {}
        at = Offset(0)
        while pieces := await log.read(at, log.durable_end):
            for piece in pieces:
                found.update(enumerate(payloads_of([piece]), piece.start))
            at = pieces[-1].end
        for offset, payload in self.acked[topic].items():
            if offset not in found:
                self.violations.append(f"offset {offset} of {topic} is lost")
            elif found[offset] != payload:
                self.violations.append(f"offset {offset} of {topic} has another value")
        progress = owner.storage.progress(SubscriptionId(log.topic_id))
        held = RangeSet([(0, progress.cursor), *progress.settled] if progress else [])
        for start, end in self.settled[topic]:
            if held.missing(start, end):
                self.violations.append(f"progress [{start}, {end}) of {topic} is lost")
