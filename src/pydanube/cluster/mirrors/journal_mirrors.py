"""Everything about journal mirrors of one broker behind one door."""

from collections.abc import Collection, Sequence
from itertools import count

from typing_extensions import override

from pydanube.cluster.mirrors.link import Link
from pydanube.cluster.mirrors.peers import Peers
from pydanube.cluster.mirrors.ports import Mirrors, ReplicaSets
from pydanube.cluster.mirrors.replicated import ReplicatedTopic
from pydanube.cluster.mirrors.service import MirrorService
from pydanube.cluster.mirrors.settings import MirrorSettings
from pydanube.cluster.mirrors.take_over import FoundTail, TailReader, recover_tail
from pydanube.metadata.transport import Connect
from pydanube.model.ids import BrokerId, SubscriptionId, TopicId
from pydanube.observability.counts import MirrorMetrics, MirrorReading
from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.mirrors.stream import TopicStream, WaitingBytes
from pydanube.storage.segments.catalog import SegmentCatalog
from pydanube.storage.storage import Storage
from pydanube.storage.topic_log import TopicLog
from pydanube.wire.calls import HandlerTable

LOOK_SECONDS = 0.2
LOOKS_PER_WISH = 5
"""How many copies are wanted is asked for less often: it takes more work and changes seldom."""
FOLLOW_SECONDS = 5.0
_STREAM_IDS = 2**63 - 1


class JournalMirrors(Mirrors):
    """Streams this broker's topics to others, and keeps copies of theirs.

    `catalog` tells how far segments reach, so that copies need not stay for ever.
    """

    def __init__(
        self,
        *,
        cluster: str,
        own: BrokerId,
        storage: Storage,
        catalog: SegmentCatalog,
        sets: ReplicaSets,
        connect: Connect,
        clock: Clock,
        randomness: Randomness,
        tasks: TaskScope,
        settings: MirrorSettings,
        metrics: MirrorMetrics | None = None,
    ) -> None:
        self._metrics = metrics or MirrorMetrics()
        self._own = own
        self._storage = storage
        self._catalog = catalog
        self._sets = sets
        self._clock = clock
        self._randomness = randomness
        self._settings = settings
        self._tasks = TaskScope(tasks.report)
        self._peers = Peers(cluster, own, connect, sets)
        self._service = MirrorService(cluster, own, storage.mirrors, catalog.frontier)
        self._reader = TailReader(own, storage.mirrors, self._peers, tasks.report)
        self._links: dict[BrokerId, Link] = {}
        self._topics: dict[TopicId, ReplicatedTopic] = {}
        self._waiting = WaitingBytes(settings.unacknowledged_bytes_max, settings.backlog_bytes_max)

    @override
    def add_to(self, table: HandlerTable) -> None:
        self._service.add_to(table)

    def start(self) -> None:
        """Look after the copies from now on."""
        self._tasks.start(self._look_around(), "mirrors")
        self._tasks.start(self._follow_catalog(), "mirrored topics")

    @property
    def topics(self) -> Collection[ReplicatedTopic]:
        """The topics of this broker that are mirrored."""
        return self._topics.values()

    def reading(self) -> MirrorReading:
        """Return what metrics tell of the copies of this broker's topics."""
        lags: dict[str, int] = {}
        waiting = short = 0
        for replicated in self._topics.values():
            replication = replicated.stream.replication
            waiting += replication.last - replication.acknowledged
            short += len(replication.members) < replicated.wanted
            for broker, lag in replicated.lags.items():
                lags[str(broker)] = lags.get(str(broker), 0) + lag
        return MirrorReading(
            lag_records=lags,
            waiting_records=waiting,
            waiting_bytes=self._waiting.unacknowledged,
            backlog_bytes=self._waiting.backlog,
            short_topics=short,
        )

    @override
    def wanted(self, topic: str) -> int:
        return self._sets.wanted(topic)

    @override
    def wanted_by(self, own: int | None, policy: int | None) -> int:
        return self._sets.wanted_by(own, policy)

    @override
    async def replicate(
        self,
        log: TopicLog,
        *,
        topic: str,
        epoch: int,
        replicas: int,
        members: Sequence[BrokerId],
        subscriptions: Collection[SubscriptionId],
    ) -> ReplicatedTopic:
        replicated = self._replicate(log, topic, epoch, replicas, subscriptions, ())
        try:
            await replicated.open(members)
        except BaseException:
            await replicated.close()
            raise
        return replicated

    @override
    def replicate_alone(
        self,
        log: TopicLog,
        *,
        topic: str,
        epoch: int,
        replicas: int,
        subscriptions: Collection[SubscriptionId],
    ) -> ReplicatedTopic:
        return self._replicate(log, topic, epoch, replicas, subscriptions, (self._own,))

    def _replicate(
        self,
        log: TopicLog,
        topic: str,
        epoch: int,
        replicas: int,
        subscriptions: Collection[SubscriptionId],
        recorded: tuple[BrokerId, ...],
    ) -> ReplicatedTopic:
        stream = TopicStream(
            log.topic_id,
            epoch,
            1 + self._randomness.below(_STREAM_IDS),
            self._own,
            self._waiting,
            recorded,
        )
        replicated = ReplicatedTopic(
            topic,
            log,
            stream,
            wanted=replicas,
            sets=self._sets,
            link_to=self._link_to,
            settings=self._settings,
            clock=self._clock,
            tasks=self._tasks,
            metrics=self._metrics,
            closed=self._closed,
        )
        self._topics[log.topic_id] = replicated
        self._storage.replicate(log.topic_id, stream, subscriptions)
        return replicated

    @override
    async def recover_tail(
        self,
        topic: str,
        topic_id: TopicId,
        *,
        set_epoch: int,
        members: Sequence[BrokerId],
        new_epoch: int,
        subscriptions: Collection[SubscriptionId],
    ) -> FoundTail:
        return await recover_tail(
            self._reader,
            topic,
            topic_id,
            set_epoch=set_epoch,
            members=members,
            new_epoch=new_epoch,
            subscriptions=subscriptions,
        )

    @override
    async def close(self) -> None:
        for link in self._links.values():
            link.close()
        await self._tasks.close()
        await self._peers.close()

    def _closed(self, replicated: ReplicatedTopic) -> None:
        topic_id = replicated.stream.topic_id
        if self._topics.get(topic_id) is replicated:
            del self._topics[topic_id]
            self._storage.end_replication(topic_id)
        replicated.stream.close()

    def _link_to(self, broker: BrokerId) -> Link:
        link = self._links.get(broker)
        if link is None:
            link = Link(broker, self._peers, self._storage, self._clock, self._tasks)
            self._links[broker] = link
            link.start()
        return link

    async def _look_around(self) -> None:
        for number in count():
            await self._clock.sleep(LOOK_SECONDS)
            now_ms = self._clock.monotonic_ms()
            for replicated in list(self._topics.values()):
                if number % LOOKS_PER_WISH == 0:
                    replicated.want(self._sets.wanted(replicated.topic))
                replicated.look(now_ms)

    async def _follow_catalog(self) -> None:
        """Let copies go that are in segments, or whose topic is gone."""
        known: set[TopicId] = set()
        while True:
            await self._clock.sleep(FOLLOW_SECONDS)
            for topic_id in self._storage.mirrors.topics():
                name = self._sets.name_of(topic_id)
                if name is not None:
                    known.add(topic_id)
                    frontier = self._catalog.frontier(name, topic_id)
                    if frontier is not None and frontier.topic_id == topic_id:
                        self._storage.mirrors.follow(topic_id, frontier.epoch, frontier.end)
                elif topic_id in known:
                    # It was there and is no more; one that was never seen may be a new one.
                    known.discard(topic_id)
                    self._storage.drop_topic(topic_id)
