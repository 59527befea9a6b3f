"""Replica sets as the metadata has them."""

from collections.abc import Collection, Sequence

from typing_extensions import override

from pydanube.cluster.directory import Directory
from pydanube.cluster.mirrors.ports import ReplicaSets
from pydanube.cluster.records import ReplicaSet, encode
from pydanube.errors import Conflict
from pydanube.metadata import keys
from pydanube.metadata.store import Expect, MetadataStore, Put
from pydanube.model.ids import BrokerId, TopicId
from pydanube.model.names import namespace_of
from pydanube.model.policies import REPLICAS_MAX
from pydanube.storage.errors import Fenced
from pydanube.topics.catalog import Catalog


class RecordedSets(ReplicaSets):
    """Answers from the directory, and records sets in the store as the owner `me`."""

    def __init__(
        self,
        store: MetadataStore,
        directory: Directory,
        catalog: Catalog,
        me: BrokerId,
        *,
        replicas: int,
        replicas_max: int = REPLICAS_MAX,
    ) -> None:
        self._store = store
        self._directory = directory
        self._catalog = catalog
        self._me = me
        self._replicas = replicas
        self._replicas_max = replicas_max
        self._names: dict[TopicId, str] = {}

    @override
    def address_of(self, broker: BrokerId) -> str | None:
        record = self._directory.record_of(broker)
        return (record.raft_address or None) if record is not None else None

    @override
    def is_leaving(self, broker: BrokerId) -> bool:
        return self._directory.view.state(broker).mode != "active"

    @override
    def wanted(self, topic: str) -> int:
        """Return what the topic says, else its namespace, else the configuration."""
        record = self._catalog.topic(topic)
        own = record.replicas if record is not None else None
        policies = self._catalog.topic_policies(topic, namespace_of(topic))
        return self.wanted_by(own, policies.replicas)

    @override
    def wanted_by(self, own: int | None, policy: int | None) -> int:
        chosen = policy if own is None else own
        return min(chosen or self._replicas, self._replicas_max)

    @override
    def candidates(self, topic: str, excluded: Collection[BrokerId]) -> Sequence[BrokerId]:
        """Return those with the fewest copies first."""
        view = self._directory.view
        free = [broker for broker in view.active() if broker not in excluded and broker != self._me]
        return sorted(free, key=lambda broker: (view.copies[broker], broker))

    @override
    def name_of(self, topic_id: TopicId) -> str | None:
        name = self._names.get(topic_id)
        record = self._catalog.topic(name) if name is not None else None
        if record is None or record.id != topic_id:
            self._names = {record.id: name for name, record in self._catalog.topics()}
        return self._names.get(topic_id)

    @override
    async def record(self, topic: str, epoch: int, members: Sequence[BrokerId]) -> None:
        replicas = ReplicaSet(epoch=epoch, members=tuple(members))
        try:
            await self._store.transact(
                [Expect(keys.assignment(self._me, topic), epoch)],
                [Put(keys.replicas(topic), encode(replicas))],
            )
        except Conflict as error:
            raise Fenced(f"this broker no longer owns topic {topic}: {error}") from error
