"""Brings a topic into this broker's journal, from wherever its last owner left it."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec
from msgspec import Struct

from pydanube.cluster.records import Handover, ReplicaSet, encode
from pydanube.errors import DanubeError, Unavailable
from pydanube.metadata import keys
from pydanube.metadata.store import Expect, MetadataStore, Put
from pydanube.model.ids import BrokerId, Offset
from pydanube.model.progress import Progress
from pydanube.observability.logging import get_logger
from pydanube.storage.segments.catalog import SegmentCatalog
from pydanube.storage.segments.encoding import SegmentOrigin
from pydanube.storage.storage import Storage
from pydanube.storage.topic_log import LastBatch
from pydanube.topics.catalog import Catalog, TopicRecord

_log = get_logger(__name__)


class Beginning(Struct, frozen=True, kw_only=True):
    """Where an ownership begins, and what is known of before. All below `start` is in segments."""

    start: Offset
    producers: Iterable[LastBatch] = ()
    cursors: Mapping[str, Progress] | None = None
    """By subscription; None leaves the journal's own."""


class TailRecovery(Protocol):
    """Knows where the newest messages of a topic are whose owner did not hand it over."""

    async def recover(
        self, topic: str, record: TopicRecord, replicas: ReplicaSet, epoch: int
    ) -> Beginning:
        """Bring them into segments under the new epoch; Unavailable while too few can be asked."""

    def members_for(self, topic: str, record: TopicRecord) -> tuple[BrokerId, ...]:
        """Return in whose journals a topic's messages shall be, this broker first."""

    async def begin(
        self, topic: str, record: TopicRecord, replicas: ReplicaSet, beginning: Beginning | None
    ) -> None:
        """Let the other members follow from now on; None: they go on where they were."""


class Opening:
    """Prepares topics. When `prepare` returns, the journal may be appended to under the epoch."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: Catalog,
        segments: SegmentCatalog,
        storage: Storage,
        me: BrokerId,
        tails: TailRecovery,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._segments = segments
        self._storage = storage
        self._me = me
        self._tails = tails

    async def prepare(self, topic: str, record: TopicRecord, epoch: int) -> None:
        """Make the topic ready under an epoch; may be repeated after a failure or a crash."""
        if record.strategy != "Reliable":
            return
        beginning = None
        if self._storage.epoch_of(record.id) != epoch:
            beginning = await self._beginning(topic, record, epoch)
            await self._segments.claim(SegmentOrigin(topic=topic, topic_id=record.id, epoch=epoch))
            await self._storage.take_over(record.id, epoch, beginning.start, beginning.producers)
            await self._take_cursors(topic, beginning)
        replicas = self._replicas(topic)
        if replicas is None or replicas.epoch != epoch:
            replicas = ReplicaSet(epoch=epoch, members=self._tails.members_for(topic, record))
            await self._store.transact(
                [Expect(keys.assignment(self._me, topic), epoch)],
                [Put(keys.replicas(topic), encode(replicas))],
            )
        await self._tails.begin(topic, record, replicas, beginning)

    async def _beginning(self, topic: str, record: TopicRecord, epoch: int) -> Beginning:
        handover, replicas = self._handover(topic), self._replicas(topic)
        handed_over = handover.epoch if handover is not None else 0
        if replicas is not None and replicas.epoch > handed_over:
            if self._storage.epoch_of(record.id) == replicas.epoch and len(replicas.members) == 1:
                return await self._own_tail(topic, record, epoch)
            return await self._tails.recover(topic, record, replicas, epoch)
        if handover is not None:
            return Beginning(
                start=handover.end, producers=handover.producers, cursors=handover.cursors
            )
        if self._storage.journaled_end(record.id) > 0:
            # Written by this broker before it was in a cluster.
            return await self._own_tail(topic, record, epoch)
        frontier = self._segments.frontier(topic, record.id)
        return Beginning(start=frontier.end if frontier is not None else Offset(0))

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
        for name, subscription in self._catalog.subscriptions(topic):
            progress = beginning.cursors.get(name) or Progress(Offset(subscription.start))
            self._storage.replace_progress(
                subscription.id, progress, lambda error: failures.append(error) if error else None
            )
        await self._storage.flush()
        if failures:
            raise Unavailable(f"cursors of {topic} were not stored: {failures[0]}")

    def _handover(self, topic: str) -> Handover | None:
        entry = self._store.get(keys.handover(topic))
        return msgspec.json.decode(entry.value, type=Handover) if entry is not None else None

    def _replicas(self, topic: str) -> ReplicaSet | None:
        entry = self._store.get(keys.replicas(topic))
        return msgspec.json.decode(entry.value, type=ReplicaSet) if entry is not None else None
