"""Brings a topic into this broker's journal, from wherever its last owner left it."""

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import Struct

from pydanube.cluster.mirrors.ports import Mirrors, Replicated
from pydanube.cluster.records import Assignment, Handover, ReplicaSet, encode
from pydanube.errors import DanubeError, Unavailable
from pydanube.metadata import keys
from pydanube.metadata.store import Expect, MetadataStore, Put
from pydanube.model.ids import BrokerId, Offset, SubscriptionId
from pydanube.model.progress import Progress
from pydanube.observability.logging import get_logger
from pydanube.storage.errors import Fenced
from pydanube.storage.segments.catalog import SegmentCatalog
from pydanube.storage.segments.encoding import SegmentOrigin
from pydanube.storage.storage import Storage
from pydanube.storage.topic_log import LastBatch
from pydanube.topics.catalog import Catalog, TopicRecord
from pydanube.topics.topic import Topic

_log = get_logger(__name__)

MembersFor = Callable[[str, TopicRecord], tuple[BrokerId, ...]]
"""Returns in whose journals a topic's messages shall be, this broker first."""


class Beginning(Struct, frozen=True, kw_only=True):
    """Where an ownership begins, and what is known of before. All below `start` is in segments."""

    start: Offset
    producers: Iterable[LastBatch] = ()
    cursors: Mapping[SubscriptionId, Progress] | None = None
    """None leaves the journal's own."""


class Opening:
    """Prepares topics. An epoch is prepared once, and then served by this process alone."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        catalog: Catalog,
        segments: SegmentCatalog,
        storage: Storage,
        me: BrokerId,
        mirrors: Mirrors | None,
        members_for: MembersFor,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._segments = segments
        self._storage = storage
        self._me = me
        self._mirrors = mirrors
        self._members_for = members_for
        self._begun: dict[str, int] = {}
        """By topic, the epoch that this process has begun and nobody has streamed."""

    async def prepare(self, topic: str, record: TopicRecord, epoch: int) -> bool:
        """Make a topic ready under an epoch; may be repeated after a failure or a crash.

        False if the epoch has been served before and may not be again: then this broker has given
        itself another one.
        """
        self._begun.pop(topic, None)
        if record.strategy != "Reliable":
            return True
        # What this process queued when it served the topic before has offsets, and may still be
        # answered: it must be in the journal before anybody asks where that ends.
        await self._storage.flush()
        replicas = self._replicas(topic)
        if replicas is not None and replicas.epoch == epoch:
            if self._may_resume(topic, record, replicas):
                return True
            await self._renew(topic, epoch)
            return False
        beginning = await self._beginning(topic, record, epoch)
        await self._segments.claim(_origin(topic, record, epoch))
        await self._take_cursors(topic, beginning)
        # Last: that the journal has this epoch says that everything else has been done.
        await self._storage.take_over(record.id, epoch, beginning.start, beginning.producers)
        self._begun[topic] = epoch
        return True

    async def replicate(self, topic: Topic, epoch: int) -> Replicated | None:
        """Let others follow a topic that is ready, and record who does; None if nobody shall."""
        if topic.log is None:
            return None
        members = self._members_for(topic.name, topic.record)
        replicas = self._replicas(topic.name)
        wanted = self._wanted(topic.name)
        if wanted == 1 or self._mirrors is None:
            if replicas is None or replicas.epoch != epoch:
                await self._record(topic.name, ReplicaSet(epoch=epoch, members=(self._me,)))
            return None
        self._begun.pop(topic.name, None)
        try:
            return await self._mirrors.replicate(
                topic.log,
                topic=topic.name,
                epoch=epoch,
                replicas=wanted,
                members=members,
                subscriptions=self._subscriptions(topic.name),
            )
        except Fenced:
            # If it is still this broker's, an earlier attempt has begun the epoch elsewhere.
            await self._renew(topic.name, epoch)
            raise

    def lacks_copies(self, topic: Topic) -> bool:
        """Tell whether a topic that nobody follows shall have copies by now."""
        if topic.log is None or self._mirrors is None:
            return False
        # From memory: every topic is looked at, again and again.
        return self._mirrors.wanted_by(topic.record.replicas, topic.policies.replicas) > 1

    async def begin_copies(self, topic: Topic, epoch: int) -> Replicated | None:
        """Let others follow a topic in use that nobody has followed so far.

        None if a stream of this epoch may have been before: then this broker has given itself
        another epoch, under which the topic is opened with its copies.
        """
        assert topic.log is not None
        assert self._mirrors is not None
        if self._begun.pop(topic.name, None) != epoch:
            await self._renew(topic.name, epoch)
            return None
        return self._mirrors.replicate_alone(
            topic.log,
            topic=topic.name,
            epoch=epoch,
            replicas=self._wanted(topic.name),
            subscriptions=self._subscriptions(topic.name),
        )

    def _subscriptions(self, topic: str) -> list[SubscriptionId]:
        return [each.id for _, each in self._catalog.subscriptions(topic)]

    def _wanted(self, topic: str) -> int:
        return self._mirrors.wanted(topic) if self._mirrors is not None else 1

    async def _record(self, topic: str, replicas: ReplicaSet) -> None:
        await self._store.transact(
            [Expect(keys.assignment(self._me, topic), replicas.epoch)],
            [Put(keys.replicas(topic), encode(replicas))],
        )

    def _may_resume(self, topic: str, record: TopicRecord, replicas: ReplicaSet) -> bool:
        """Tell whether the journal alone says all: nobody else has a copy that could differ."""
        alone = replicas.members == (self._me,) and self._wanted(topic) == 1
        return alone and self._storage.epoch_of(record.id) == replicas.epoch

    async def _renew(self, topic: str, epoch: int) -> None:
        key = keys.assignment(self._me, topic)
        assignment = Assignment(reason="failover", from_broker=self._me)
        await self._store.transact([Expect(key, epoch)], [Put(key, encode(assignment))])

    async def _beginning(self, topic: str, record: TopicRecord, epoch: int) -> Beginning:
        if self._storage.epoch_of(record.id) == epoch:
            # An earlier attempt ended after everything of before was in segments.
            return await self._own_tail(topic, record, epoch)
        handover, replicas = self.handover(topic), self._replicas(topic)
        handed_over = handover.epoch if handover is not None else 0
        if replicas is not None and replicas.epoch > handed_over:
            return await self._recovered(topic, record, replicas, epoch)
        if handover is not None:
            subscriptions = {name: each.id for name, each in self._catalog.subscriptions(topic)}
            cursors = {
                subscriptions[name]: progress
                for name, progress in handover.cursors.items()
                if name in subscriptions
            }
            return Beginning(start=handover.end, producers=handover.producers, cursors=cursors)
        if self._storage.journaled_end(record.id) > 0:
            # Written by this broker before it was in a cluster.
            return await self._own_tail(topic, record, epoch)
        return Beginning(start=self._frontier(topic, record))

    async def _recovered(
        self, topic: str, record: TopicRecord, replicas: ReplicaSet, epoch: int
    ) -> Beginning:
        """Bring into segments what the last owner acknowledged and did not hand over."""
        alone = replicas.members == (self._me,)
        if alone and self._storage.epoch_of(record.id) == replicas.epoch:
            return await self._own_tail(topic, record, epoch)
        if self._mirrors is None:
            raise Unavailable(f"topic {topic} waits for broker {replicas.members[0]}")
        tail = await self._mirrors.recover_tail(
            topic,
            record.id,
            set_epoch=replicas.epoch,
            members=replicas.members,
            new_epoch=epoch,
            subscriptions=self._subscriptions(topic),
        )
        start = max(self._frontier(topic, record), tail.start)
        end = await self._storage.export_tail(record.id, topic, epoch, start, tail.batches(start))
        if end < tail.end:
            raise Unavailable(f"the copies of {topic} end at {end}, not at {tail.end}; try again")
        _log.info("recovered from copies", topic=topic, epoch=epoch, end=end)
        return Beginning(start=end, producers=tail.producers, cursors=tail.progress)

    async def _own_tail(self, topic: str, record: TopicRecord, epoch: int) -> Beginning:
        """Bring what this broker's journal holds into segments: nobody has had the topic since."""
        log = self._storage.topic(record.id, topic, epoch=epoch)
        try:
            await self._storage.seal_topic(record.id)
            return Beginning(start=log.durable_end, producers=tuple(log.producers.values()))
        finally:
            self._storage.let_go(record.id, forget=False)

    async def _take_cursors(self, topic: str, beginning: Beginning) -> None:
        if beginning.cursors is None:
            return
        failures: list[DanubeError] = []
        for _, subscription in self._catalog.subscriptions(topic):
            known = beginning.cursors.get(subscription.id)
            self._storage.replace_progress(
                subscription.id,
                known or Progress(Offset(subscription.start)),
                lambda error: failures.append(error) if error else None,
            )
        await self._storage.flush()
        if failures:
            raise Unavailable(f"cursors of {topic} were not stored: {failures[0]}")

    def _frontier(self, topic: str, record: TopicRecord) -> Offset:
        frontier = self._segments.frontier(topic, record.id)
        return frontier.end if frontier is not None else Offset(0)

    def handover(self, topic: str) -> Handover | None:
        """Return what the last owner left that let go in order, if one ever did."""
        entry = self._store.get(keys.handover(topic))
        return msgspec.json.decode(entry.value, type=Handover) if entry is not None else None

    def _replicas(self, topic: str) -> ReplicaSet | None:
        entry = self._store.get(keys.replicas(topic))
        return msgspec.json.decode(entry.value, type=ReplicaSet) if entry is not None else None


def _origin(topic: str, record: TopicRecord, epoch: int) -> SegmentOrigin:
    return SegmentOrigin(topic=topic, topic_id=record.id, epoch=epoch)
