"""Writes what `danube recover` has planned: entries only, each of which may be written again."""

from contextlib import suppress

import msgspec
from msgspec import Struct

from pydanube.broker.recovery_plan import NewSubscription, NewTopic
from pydanube.cluster.records import Assignment, ReplicaSet, encode
from pydanube.errors import AlreadyExists
from pydanube.metadata import keys
from pydanube.metadata.restores import (
    REVISIONS,
    Restore,
    encode_restore,
    restores,
)
from pydanube.metadata.store import Delete, MetadataStore, Operation, Put
from pydanube.model.ids import BrokerId, SubscriptionId, TopicId
from pydanube.model.policies import Policies
from pydanube.runtime.threads import WorkerThreads
from pydanube.storage.journal.comparison import MissingTopic
from pydanube.storage.segments.catalog import SegmentEntry, epoch_of
from pydanube.storage.segments.encoding import SegmentOrigin
from pydanube.storage.segments.object_store import ObjectStore
from pydanube.storage.segments.rebuilding import Chain, Link, entry_from_object
from pydanube.topics.catalog import Catalog, counter_behind
from pydanube.topics.segment_catalog import MetadataSegmentCatalog


class Writing(Struct, frozen=True, kw_only=True):
    """The metadata to write to, and what that takes."""

    store: MetadataStore
    broker: BrokerId | None
    """Who serves what was in this journal alone; None without a cluster."""
    prefix: str
    objects: ObjectStore
    threads: WorkerThreads
    now_ms: int

    async def go_on_behind(self, revision: int, ids: tuple[TopicId, SubscriptionId]) -> None:
        """Give no id, and no epoch, again that journal or segments have seen."""
        counters = {
            keys.TOPIC_ID_COUNTER: counter_behind(ids[0]),
            keys.SUBSCRIPTION_ID_COUNTER: counter_behind(ids[1]),
        }
        present = self.store.revision
        if revision <= present:
            await self.store.leap(0, counters)
            return
        leap = Restore(
            revision=present,
            goes_on_behind=revision + REVISIONS,
            time_ms=self.now_ms,
            is_compared=True,
        )
        # The note first: should a crash come between, what it excludes has not been given yet.
        await self.store.put(keys.restore(present), encode_restore(leap))
        await self.store.leap(leap.goes_on_behind, counters)

    async def namespaces(self, names: list[str]) -> None:
        """Make sure of namespaces; new ones have the default policies."""
        catalog = Catalog(self.store)
        for name in names:
            if catalog.namespace_policies(name) is None:
                with suppress(AlreadyExists):
                    await catalog.create_namespace(name, Policies())

    async def topic(self, topic: NewTopic) -> None:
        """Enter a topic, and who serves it."""
        operations: list[Operation] = [
            Put(keys.topic_record(topic.name), msgspec.json.encode(topic.record)),
            Put(keys.namespace_topic(topic.name), b"null"),
            Put(keys.recovered(topic.record.id), b"%d" % topic.epoch),
            *self._give(topic.name, topic.epoch, topic.journal_end - topic.journal_first),
        ]
        await self.store.transact([], operations)

    async def subscription(self, subscription: NewSubscription) -> None:
        """Enter a subscription."""
        key = keys.subscription(subscription.topic, subscription.name)
        await self.store.put(key, msgspec.json.encode(subscription.record))

    async def take_back(self, name: str, moved: MissingTopic) -> None:
        """Let this broker serve a topic that it was the last to serve."""
        operations: list[Operation] = [
            Delete(each.key)
            for each in self.store.list(keys.BROKERS)
            if each.key.endswith(name) and each.key != self._mine(name)
        ]
        operations += [Delete(keys.handover(name)), Delete(keys.unassigned_topic(name))]
        operations.append(Put(keys.recovered(moved.id), b"%d" % moved.epoch))
        await self.store.transact(
            [], [*operations, *self._give(name, moved.epoch, moved.end - moved.first)]
        )

    def _mine(self, name: str) -> str:
        return keys.assignment(self.broker, name) if self.broker is not None else ""

    def _give(self, name: str, epoch: int, journaled: int) -> list[Operation]:
        """Let this broker serve a topic, and nobody else before its journal has been read.

        While this runs the broker is not there, so the leader looks for another one. The set of
        journals says that the newest messages are in this one alone: then the leader waits.
        """
        if self.broker is None:
            return []
        assignment = Assignment(reason="failover", time_ms=self.now_ms)
        journals = ReplicaSet(epoch=epoch, members=(self.broker,))
        is_here = epoch > 0 and journaled > 0
        return [
            Put(self._mine(name), encode(assignment)),
            Put(keys.replicas(name), encode(journals)) if is_here else Delete(keys.replicas(name)),
        ]

    async def segments(self, name: str, topic_id: TopicId, chain: Chain) -> None:
        """Make a topic's entries those of a chain; each object is read and checked as a whole."""
        entries = []
        for link in chain.links:
            entries.append(link.entry or await self._entry(name, topic_id, link))
        catalog = MetadataSegmentCatalog(self.store, self.prefix)
        await catalog.rebuild(name, topic_id, chain.start, entries)

    async def _entry(self, name: str, topic_id: TopicId, link: Link) -> SegmentEntry:
        size = await self.objects.size(link.key) or 0
        data = await self.objects.read(link.key, 0, size)
        origin = SegmentOrigin(topic=name, topic_id=topic_id, epoch=epoch_of(link.key) or 0)
        return await self.threads.run(lambda: entry_from_object(origin, link, data, self.now_ms))

    async def compared(self) -> None:
        """Note that journal and segments have been compared with every restored copy."""
        for each in restores(self.store):
            if not each.is_compared:
                done = msgspec.structs.replace(each, is_compared=True)
                await self.store.put(keys.restore(each.revision), encode_restore(done))
