"""MetadataControl: a consistent copy of the metadata, taken while the broker runs."""

import msgspec
import pyarrow as pa

from pydanube.broker.metadata import OpenMetadata
from pydanube.errors import NotSupported, Overloaded
from pydanube.metadata.backup import Manifest, TopicHistory
from pydanube.metadata.commands import MIB
from pydanube.metadata.machine_store import MachineStore
from pydanube.runtime.clock import Clock
from pydanube.storage.segments.catalog import SegmentCatalog
from pydanube.topics.catalog import Catalog
from pydanube.wire.calls import Call, HandlerTable
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from pydanube.wire.danube.services import serve

ANSWER_BYTES_MAX = 48 * MIB


class MetadataControlServicer:
    """Copies the state at one revision. Any broker of a cluster answers, with all of it."""

    def __init__(
        self,
        opened: OpenMetadata,
        segments: SegmentCatalog,
        clock: Clock,
        *,
        cluster: str,
        segments_url: str,
    ) -> None:
        self._opened = opened
        self._segments = segments
        self._clock = clock
        self._cluster = cluster
        self._segments_url = segments_url

    def register(self, table: HandlerTable) -> None:
        """Serve the methods of MetadataControl."""
        serve(table, services.CREATE_BACKUP, self.create_backup)

    async def create_backup(
        self, request: own.CreateBackupRequest, call: Call
    ) -> own.CreateBackupResponse:
        """Copy everything that was acknowledged before the call."""
        store = self._opened.store
        if not isinstance(store, MachineStore):
            raise NotSupported(
                "the metadata of this cluster are in etcd: copy them with etcdctl snapshot save"
            )
        if self._opened.raft is not None:
            await self._opened.raft.read_barrier()
        # All at one moment: nothing is awaited from here on.
        state, manifest = store.capture(), self._manifest(store)
        packed = pa.compress(state, codec="zstd", asbytes=True)
        if len(packed) > ANSWER_BYTES_MAX:
            raise Overloaded(
                f"the metadata take {len(packed)} bytes, {ANSWER_BYTES_MAX} fit into an answer; "
                "stop a broker and copy its metadata directory instead"
            )
        manifest = msgspec.structs.replace(manifest, state_bytes=len(state))
        return own.CreateBackupResponse(manifest=msgspec.json.encode(manifest), state=packed)

    def _manifest(self, store: MachineStore) -> Manifest:
        catalog = Catalog(store)
        topics, subscriptions, others = [], 0, 0
        for name, record in catalog.topics():
            subscriptions += sum(1 for _ in catalog.subscriptions(name))
            if record.strategy != "Reliable":
                others += 1
                continue
            frontier = self._segments.frontier(name, record.id)
            start, end = (frontier.start, frontier.end) if frontier is not None else (0, 0)
            topics.append(TopicHistory(topic=name, id=record.id, start=start, end=end))
        return Manifest(
            cluster=self._cluster,
            broker=self._opened.broker,
            shared_by="raft" if self._opened.raft is not None else "",
            revision=store.revision,
            created_ms=self._clock.now_ms(),
            segments=self._segments_url,
            topics=topics,
            subscriptions=subscriptions,
            best_effort_topics=others,
            state_bytes=0,
        )
