"""One of the brokers whose journals mirror each other in a simulated world."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from pydanube.cluster.mirrors.journal_mirrors import JournalMirrors
from pydanube.cluster.mirrors.ports import ReplicaSets
from pydanube.cluster.mirrors.replicated import ReplicatedTopic
from pydanube.cluster.mirrors.settings import MirrorSettings
from pydanube.cluster.opening import Opening
from pydanube.cluster.records import ReplicaSet, encode
from pydanube.errors import Conflict, DanubeError, Unavailable
from pydanube.metadata import keys
from pydanube.metadata.store import Expect, Put
from pydanube.model.ids import BrokerId, SubscriptionId, TopicId
from pydanube.observability.counts import SegmentMetrics
from pydanube.runtime.randomness import SeededRandomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.errors import Fenced
from pydanube.storage.segments.tier import SegmentPlace
from pydanube.storage.storage import Storage
from pydanube.storage.topic_log import TopicLog
from pydanube.topics.catalog import Catalog, TopicRecord
from pydanube.topics.segment_catalog import MetadataSegmentCatalog
from pydanube.wire.calls import HandlerTable, Server
from tests.support.broker_machine import MortalClock
from tests.support.faulty_store import FaultyStore
from tests.support.plain_engine import PlainChannel, PlainEngine

if TYPE_CHECKING:
    from tests.support.mirror_world import MirrorWorld

PORT = 7650
TOPICS = ("/default/one", "/default/two")
SETTINGS = MirrorSettings(patience_ms=400, join_ms=800, retry_ms=300)


class _Sets(ReplicaSets):
    def __init__(self, node: "Node") -> None:
        self._node = node
        self._world = node.world
        self._clock = node.clock

    @override
    def address_of(self, broker: BrokerId) -> str | None:
        # A dead broker's registration lives on for a while; here for ever.
        return f"{self._world.nodes[broker].name}:{PORT}"

    @override
    def is_leaving(self, broker: BrokerId) -> bool:
        return False

    @override
    def wanted(self, topic: str) -> int:
        return self._world.wanted

    @override
    def wanted_by(self, own: int | None, policy: int | None) -> int:
        return self._world.wanted

    @override
    def candidates(self, topic: str, excluded: Sequence[BrokerId]) -> Sequence[BrokerId]:
        alive = [each.broker for each in self._world.nodes.values() if each.storage is not None]
        return [each for each in alive if each not in excluded and each != self._node.broker]

    @override
    def name_of(self, topic_id: TopicId) -> str | None:
        return self._world.names.get(topic_id)

    @override
    async def record(self, topic: str, epoch: int, members: Sequence[BrokerId]) -> None:
        struck = self._world.cut_off_newcomers(topic, self._node, members)
        await asyncio.sleep(self._world.random.uniform(0.001, self._world.record_seconds))
        if self._world.is_troubled and self._world.random.below(10) == 0:
            raise Unavailable("the metadata has no leader")
        if not self._clock.alive:
            raise Unavailable("the machine is dead")
        await self._put(topic, epoch, members)
        if struck:
            self._world.strike(topic, self._node)
        if self._world.is_troubled and self._world.random.below(10) == 0:
            raise Unavailable("the answer was lost")

    async def _put(self, topic: str, epoch: int, members: Sequence[BrokerId]) -> None:
        replicas = ReplicaSet(epoch=epoch, members=tuple(members))
        try:
            await self._world.store.transact(
                [Expect(keys.assignment(self._node.broker, topic), epoch)],
                [Put(keys.replicas(topic), encode(replicas))],
            )
        except Conflict as error:
            raise Fenced(str(error)) from error


@dataclass
class _Opened:
    """As much of a topic as is needed to open it."""

    name: str
    record: TopicRecord
    log: TopicLog


@dataclass
class Serving:
    epoch: int
    log: TopicLog
    replicated: ReplicatedTopic | None
    """None while nobody shall have a copy."""


class Node:
    """A machine and the broker's storage on it."""

    def __init__(self, world: "MirrorWorld", broker: BrokerId) -> None:
        self.world = world
        self.broker = broker
        self.name = f"broker{broker}"
        self.disk = self._new_disk()
        self.clock = MortalClock()
        self.storage: Storage | None = None
        self.mirrors: JournalMirrors | None = None
        self.serving: dict[str, Serving] = {}
        self.opening: set[str] = set()
        self._server: Server | None = None
        self._booting = asyncio.Lock()
        self._tasks = TaskScope(self._failed)

    def _new_disk(self) -> SimulatedDisk:
        return SimulatedDisk(SeededRandomness(self.world.random.below(2**32)))

    def _failed(self, name: str, error: BaseException) -> None:
        if self.clock.alive and not isinstance(error, DanubeError):
            self.world.unexpected.append(error)

    async def boot(self) -> None:
        async with self._booting:
            if self.storage is None:
                await self._boot()

    async def _boot(self) -> None:
        clock = self.clock = MortalClock()
        tasks = self._tasks = TaskScope(self._failed)
        world = self.world
        catalog = MetadataSegmentCatalog(world.store, "/danube")
        storage = await Storage.open(
            self.disk.mount(),
            clock,
            tasks,
            world.config,
            "/data/wal",
            identity=f"world/{self.broker}",
            segments=SegmentPlace(
                store=FaultyStore(world.cloud),
                catalog=catalog,
                randomness=world.random,
                metrics=SegmentMetrics(),
            ),
        )
        storage.keep_only(set(world.names), {SubscriptionId(each) for each in world.names})
        host = world.network.host(self.name)

        def connect(address: str) -> PlainChannel:
            name, _, port = address.partition(":")
            return PlainChannel(host, name, int(port))

        mirrors = JournalMirrors(
            cluster="world",
            own=self.broker,
            storage=storage,
            catalog=catalog,
            sets=_Sets(self),
            connect=connect,
            clock=clock,
            randomness=world.random,
            tasks=tasks,
            settings=SETTINGS,
        )
        self.storage, self.mirrors = storage, mirrors
        self._opener = Opening(
            store=world.store,
            catalog=Catalog(world.store),
            segments=catalog,
            storage=storage,
            me=self.broker,
            mirrors=mirrors,
            members_for=lambda topic, record: self._members(),
        )
        table = HandlerTable()
        mirrors.add_to(table)
        mirrors.start()
        self._server = await PlainEngine(host).serve(table, self.name, PORT)
        tasks.start(self._reconcile(), "reconcile")

    def _members(self) -> tuple[BrokerId, ...]:
        others = [
            each.broker
            for each in self.world.nodes.values()
            if each.storage is not None and each is not self
        ]
        self.world.shuffle(others)
        return (self.broker, *others[: self.world.wanted - 1])

    async def _reconcile(self) -> None:
        """Serve what the metadata says, as soon as it is known here."""
        while True:
            for topic in TOPICS:
                entry = self.world.store.get(keys.assignment(self.broker, topic))
                epoch = entry.revision if entry is not None else 0
                serving = self.serving.get(topic)
                if serving is not None and serving.epoch != epoch:
                    await self._let_go(topic)
                elif serving is not None and serving.replicated is None:
                    await self._begin_copies(topic, serving)
                elif serving is None and epoch and topic not in self.opening:
                    self.opening.add(topic)
                    self._tasks.start(self._open(topic, epoch), f"open {topic}")
            await self.clock.sleep(self.world.random.uniform(0.01, self.world.plan.news_seconds))

    async def _begin_copies(self, topic: str, serving: Serving) -> None:
        if self.world.wanted == 1:
            return
        opened = _Opened(topic, self.world.records[topic], serving.log)
        try:
            replicated = await self._opener.begin_copies(opened, serving.epoch)  # type: ignore[arg-type]
        except DanubeError as error:
            self.world.last_refusal = str(error)
            return
        self.world.counts["grew in use" if replicated is not None else "opened to grow"] += 1
        assert isinstance(replicated, ReplicatedTopic | None)
        serving.replicated = replicated

    async def _let_go(self, topic: str) -> None:
        assert self.storage is not None
        serving = self.serving.pop(topic)
        if serving.replicated is not None:
            await serving.replicated.close()
        self.storage.let_go(serving.log.topic_id, forget=False)

    async def _open(self, topic: str, epoch: int) -> None:
        assert self.storage is not None
        assert self.mirrors is not None
        record = self.world.records[topic]
        try:
            if not await self._opener.prepare(topic, record, epoch):
                return
            log = self.storage.topic(record.id, topic, epoch=epoch)
            self.storage.belongs(SubscriptionId(record.id), record.id)
            try:
                replicated = await self._opener.replicate(_Opened(topic, record, log), epoch)  # type: ignore[arg-type]
            except BaseException:
                if self.storage is not None:
                    self.storage.let_go(record.id, forget=False)
                raise
            assert isinstance(replicated, ReplicatedTopic | None)
            self.serving[topic] = Serving(epoch, log, replicated)
            self.world.counts["opened"] += 1
        except DanubeError as error:
            self.world.last_refusal = str(error)
            self.world.counts["not opened"] += 1
            await self.clock.sleep(0.1)
        finally:
            self.opening.discard(topic)

    async def crash(self, *, wipe: bool = False) -> None:
        """Cut the power; with `wipe` the disk does not come back."""
        self.clock.alive = False
        self.storage = self.mirrors = None
        self.serving.clear()
        self.opening.clear()
        self.world.network.crash(self.name)
        self.disk.crash(self.world.random)
        await self._tasks.close()
        if wipe:
            self.disk = self._new_disk()
