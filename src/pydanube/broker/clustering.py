"""A broker's part in its cluster: all of the cluster room, put together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from pydanube.broker.metadata import BrokerStore
from pydanube.cluster.balancing import BalanceSettings, Balancing, Count
from pydanube.cluster.directory import Directory
from pydanube.cluster.giving_up import CANNOT_WRITE_AGAIN, state_at_start, state_given_up
from pydanube.cluster.leader import Leader, Leadership
from pydanube.cluster.leftovers import Leftovers
from pydanube.cluster.membership import LeaseTerms, Membership
from pydanube.cluster.mirrors.journal_mirrors import JournalMirrors
from pydanube.cluster.mirrors.recorded_sets import RecordedSets
from pydanube.cluster.mirrors.settings import MirrorSettings
from pydanube.cluster.opening import Opening
from pydanube.cluster.operations import Operations
from pydanube.cluster.ownership import Ownership
from pydanube.cluster.planning import Chooser
from pydanube.cluster.records import SHUTDOWN, BrokerRecord, BrokerState, encode
from pydanube.cluster.staying import Staying
from pydanube.errors import Conflict, DanubeError, Unavailable
from pydanube.metadata import keys
from pydanube.metadata.transport import Connect
from pydanube.model.ids import BrokerId
from pydanube.model.policies import REPLICAS_MAX
from pydanube.observability.counts import MirrorMetrics, MirrorReading
from pydanube.observability.logging import get_logger
from pydanube.observability.metrics import ClusterReading
from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.segments.catalog import SegmentCatalog
from pydanube.topics.catalog import TopicRecord
from pydanube.topics.manager import TopicManager
from pydanube.topics.registration import Registration
from pydanube.wire.calls import HandlerTable

RELIEF_SECONDS_MAX = 5.0
REPLICAS_DEFAULT = 2
FIRST_REPORT_SECONDS = 1.0
GIVE_UP_SECONDS = 1.0
"""How long a broker that cannot write tells the others so, and again hands the lead over."""
LEAVE_SECONDS = 3.0
"""How long deregistering may take; the lease ends by itself."""
_PAUSE_SECONDS = 0.2

_log = get_logger(__name__)


class Circumstances(Struct, frozen=True, kw_only=True):
    """What a broker brings into its cluster."""

    store: BrokerStore
    segments: SegmentCatalog
    broker: BrokerId
    record: BrokerRecord
    leadership: Leadership
    resign: Callable[[float], Awaitable[None]]
    """Let another broker lead, within so many seconds."""
    terms: LeaseTerms
    clock: Clock
    tasks: TaskScope
    moves_reliable: bool
    """Whether segments lie where every broker reads them."""
    cluster: str
    connect: Connect
    randomness: Randomness
    mirrors: MirrorSettings
    balance: BalanceSettings
    table: HandlerTable
    """What is served to other brokers."""
    count_assignment: Callable[[str], None]
    """Told `assign` for a topic that came, `unassign` for one that left."""
    mirror_metrics: MirrorMetrics


class Clustering:
    """Joins the cluster, serves what it is given, and leaves in order."""

    def __init__(self, given: Circumstances) -> None:
        self._given = given
        self.directory = Directory(given.store, given.clock)
        self.membership = Membership(
            given.store, given.clock, given.tasks, given.broker, given.record, given.terms
        )
        self._staying = Staying(given.store, moves_reliable=given.moves_reliable)
        self.operations = Operations(given.store, self.directory, given.clock, self._staying)
        self._sets: RecordedSets | None = None
        self._mirrors: JournalMirrors | None = None
        self._ownership: Ownership | None = None
        self.leader: Leader | None = None
        self.balancing: Balancing | None = None

    async def join(self, topics: TopicManager, registration: Registration, count: Count) -> None:
        """Become a member, and begin to serve what the cluster gives to this broker."""
        given = self._given
        mirrors = self._serve_mirrors(topics)
        await self._until_taken(topics.ensure_namespaces)
        await self._until_taken(self._become_active)
        await self._until_taken(self.membership.join)
        self.directory.start(given.tasks)
        opening = Opening(
            store=given.store,
            catalog=topics.catalog,
            segments=given.segments,
            storage=topics.storage,
            me=given.broker,
            mirrors=mirrors,
            members_for=self._members_for,
        )
        self._ownership = Ownership(
            store=given.store,
            directory=self.directory,
            membership=self.membership,
            topics=topics,
            registration=registration,
            opening=opening,
            clock=given.clock,
            tasks=given.tasks,
            choose=self.choose,
            count=given.count_assignment,
        )
        self.leader = Leader(
            store=given.store,
            directory=self.directory,
            membership=self.membership,
            leadership=given.leadership,
            catalog=topics.catalog,
            clock=given.clock,
            chooser=self._chooser,
            moves_reliable=given.moves_reliable,
        )
        self.balancing = Balancing(
            store=given.store,
            directory=self.directory,
            membership=self.membership,
            leader=self.leader,
            clock=given.clock,
            count=count,
            settings=given.balance,
            first_report_seconds=FIRST_REPORT_SECONDS,
            staying=self._staying,
        )
        topics.placement = self._ownership
        given.tasks.start(self.balancing.report(), "load reports")
        given.tasks.start(self.balancing.rebalance(), "rebalancing")
        leftovers = Leftovers(topics.storage, topics.catalog, given.segments, given.clock)
        given.tasks.start(leftovers.run(), "topics of others in the journal")
        given.tasks.start(self._follow_policies(topics), "policies of namespaces")
        given.tasks.start(self._ownership.run(), "ownership of topics")
        given.tasks.start(self.leader.run(), "duties of the leader")

    def _serve_mirrors(self, topics: TopicManager) -> JournalMirrors:
        """Keep copies of other brokers' journals from now on, and have one's own kept."""
        given = self._given
        self._sets = RecordedSets(
            given.store,
            self.directory,
            topics.catalog,
            given.broker,
            replicas=given.mirrors.replicas or REPLICAS_DEFAULT,
            replicas_max=REPLICAS_MAX if given.moves_reliable else 1,
        )
        self._mirrors = JournalMirrors(
            cluster=given.cluster,
            own=given.broker,
            storage=topics.storage,
            catalog=given.segments,
            sets=self._sets,
            connect=given.connect,
            clock=given.clock,
            randomness=given.randomness,
            tasks=given.tasks,
            settings=given.mirrors,
            metrics=given.mirror_metrics,
        )
        self._mirrors.add_to(given.table)
        self._mirrors.start()
        return self._mirrors

    async def _until_taken(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take a step that may be taken twice: whoever leads the metadata can die meanwhile."""
        tried = False
        while True:
            try:
                return await step()
            except Unavailable as error:
                if self._given.store.failure is not None:
                    raise
                if not tried:
                    _log.warning("cannot join the cluster yet; trying again", cause=str(error))
                tried = True
                await self._given.clock.sleep(_PAUSE_SECONDS)

    async def _become_active(self) -> None:
        """Take topics again after a stop; an operator's word outlasts one."""
        found = self._state()
        topics = self.directory.read().topics_of(self._given.broker)
        state = state_at_start(found, self._given.clock.now_ms(), has_topics=bool(topics))
        if state != found:
            await self._set_state(state)
        if state.reason == CANNOT_WRITE_AGAIN:
            _log.error("takes no topics until an operator activates it", cause=self.note)

    def _state(self) -> BrokerState | None:
        """Return what was last said of this broker; None if nothing ever was."""
        entry = self._given.store.get(keys.broker_state(self._given.broker))
        return msgspec.json.decode(entry.value, type=BrokerState) if entry is not None else None

    async def _set_state(self, state: BrokerState) -> None:
        await self._given.store.put(keys.broker_state(self._given.broker), encode(state))

    async def _follow_policies(self, topics: TopicManager) -> None:
        """Apply what is set for a namespace through whatever broker."""
        store = self._given.store
        while True:
            revision = store.revision
            for namespace in topics.catalog.namespaces():
                topics.apply_policies(namespace)
            try:
                async for change in store.watch(keys.NAMESPACES, revision):
                    changed = keys.namespace_of_policy(change.key)
                    if changed is not None:
                        topics.apply_policies(changed)
            except Conflict:
                continue  # Too far behind: begin anew.
            except DanubeError as error:
                _log.warning("cannot follow the cluster's policies", cause=str(error))
                await self._given.clock.sleep(_PAUSE_SECONDS)
            else:
                return

    def _chooser(self) -> Chooser:
        assert self.balancing is not None, "nothing is placed before this broker has joined"
        return self.balancing.chooser()

    def choose(self, topic: str, brokers: Sequence[BrokerId]) -> BrokerId:
        """Return which of several living brokers takes a topic."""
        assert self.balancing is not None, "nothing is placed before this broker has joined"
        return self.balancing.choose(topic, brokers)

    def _members_for(self, topic: str, record: TopicRecord) -> tuple[BrokerId, ...]:
        me = self._given.broker
        if self._sets is None:
            return (me,)
        wanted = self._sets.wanted(topic)
        return (me, *self._sets.candidates(topic, (me,))[: wanted - 1])

    async def leave(self, seconds_max: float) -> None:
        """Hand over what others can serve, and deregister."""
        if self._ownership is not None and self._is_needed_elsewhere():
            state = self._state()
            if state is None or state.mode == "active":
                await self._set_state(BrokerState(mode="draining", reason=SHUTDOWN))
            await self._ownership.hand_over_all(SHUTDOWN, seconds_max)
            await self._wait_until_relieved(min(seconds_max, RELIEF_SECONDS_MAX))
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self.membership.leave()

    async def give_up(self, why: str) -> None:
        """Be a member no more, at once, so that others open the topics; nothing is handed over.

        Each step has its time: what is to be told goes through metadata that may hang as well.
        """
        self.membership.resign()
        with suppress(TimeoutError):
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await asyncio.gather(
                    self._tell_trouble(why), self.membership.leave(), return_exceptions=True
                )
        with suppress(TimeoutError, DanubeError):
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await self._given.resign(GIVE_UP_SECONDS)

    async def _tell_trouble(self, why: str) -> None:
        given = self._given
        await self._set_state(
            state_given_up(self._state(), why, given.clock.now_ms(), given.record)
        )

    @property
    def note(self) -> str | None:
        """What an operator should see to, though everything is still served."""
        state = self._state()
        if state is None or state.reason != CANNOT_WRITE_AGAIN:
            return None
        broker = self._given.broker
        return (
            f"this broker could not write, again soon after a recovery ({state.why}): see to its "
            f"disk, then `danube brokers activate {broker}`"
        )

    def reading(self) -> ClusterReading:
        """Return what metrics tell of this broker's part."""
        balancing = self.balancing
        leads = self.leader is not None and self.leader.term is not None
        if balancing is None:
            return ClusterReading(leads=leads, imbalance=0.0, moves=0, failed_moves=0)
        return ClusterReading(
            leads=leads,
            imbalance=balancing.balance().coefficient_of_variation if leads else 0.0,
            moves=balancing.moves,
            failed_moves=balancing.failures,
            cycle_seconds=balancing.cycle_seconds,
        )

    def mirror_reading(self) -> MirrorReading:
        """Return what metrics tell of the copies of this broker's topics."""
        assert self._mirrors is not None, "nothing is measured before this broker has joined"
        return self._mirrors.reading()

    async def _wait_until_relieved(self, seconds_max: float) -> None:
        """Stay until other brokers' topics have their copies elsewhere, so that none must wait."""
        changed = asyncio.Event()
        self.directory.wakes(changed)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while self._keeps_copies():
                    changed.clear()
                    await changed.wait()

    def _keeps_copies(self) -> bool:
        me, view = self._given.broker, self.directory.view
        return any(
            me in replicas.members[1:]
            and (owner := view.owners.get(topic)) is not None
            and owner.epoch == replicas.epoch
            and owner.broker in view.brokers
            for topic, replicas in view.replicas.items()
        )

    async def close(self) -> None:
        """Stream to other brokers no more; to be called before the storage is closed."""
        if self._mirrors is not None:
            await self._mirrors.close()

    def _is_needed_elsewhere(self) -> bool:
        others = [each for each in self.directory.view.active() if each != self._given.broker]
        return self._given.moves_reliable and bool(others)
