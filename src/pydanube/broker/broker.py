"""A broker without its sockets: recovered from a data directory, it answers the handler tables."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from pydanube.broker.addresses import AdvertisedUrls
from pydanube.broker.config import BrokerConfig
from pydanube.broker.dead_letters import DeadLetters
from pydanube.broker.disk_watch import Disk, DiskWatch, Trouble, of_disk
from pydanube.broker.gate import Gate
from pydanube.broker.giving_up import GaveUp
from pydanube.broker.metadata import BrokerStore, DiskStore, OpenMetadata, Peers
from pydanube.broker.metadata_check import settle_what_is_known
from pydanube.broker.metadata_opening import open_metadata
from pydanube.broker.readings import stopped_notes, topic_readings
from pydanube.broker.servicers.broker_admin import BrokerAdminServicer, ThisBroker
from pydanube.broker.servicers.consumer import ConsumerServicer
from pydanube.broker.servicers.control import ControlServicer
from pydanube.broker.servicers.discovery import DiscoveryServicer
from pydanube.broker.servicers.flight import FlightServicer
from pydanube.broker.servicers.metadata_control import MetadataControlServicer
from pydanube.broker.servicers.namespace_admin import NamespaceAdminServicer
from pydanube.broker.servicers.producer import ProducerServicer
from pydanube.broker.servicers.schema_registry import SchemaRegistryServicer
from pydanube.broker.servicers.storage import StorageServicer
from pydanube.broker.servicers.topic_admin import TopicAdminServicer
from pydanube.errors import DanubeError, Unavailable
from pydanube.model.ids import BrokerId
from pydanube.model.policies import REPLICAS_MAX
from pydanube.observability.logging import get_logger
from pydanube.observability.metrics import BrokerMetrics, Sources
from pydanube.observability.process import read_process
from pydanube.registry.registry import SchemaRegistry
from pydanube.runtime.machine import Machine
from pydanube.runtime.protobuf_compiler import ProcessProtobufCompiler
from pydanube.runtime.tasks import TaskScope
from pydanube.runtime.threads import WorkerThreads
from pydanube.schemas.format import SchemaTools
from pydanube.storage.segments.location import open_store, store_url
from pydanube.storage.segments.object_store import ObjectStore
from pydanube.storage.segments.tier import SegmentPlace
from pydanube.storage.storage import Storage
from pydanube.topics.catalog import Catalog
from pydanube.topics.inspection import InspectionContext, WaitingRoom
from pydanube.topics.manager import TopicManager, TopicSettings
from pydanube.topics.registration import Registration
from pydanube.topics.segment_catalog import MetadataSegmentCatalog
from pydanube.wire.calls import HandlerTable
from pydanube.wire.danube import services
from pydanube.wire.flight import service as flight

if TYPE_CHECKING:
    from pydanube.broker.clustering import Clustering
    from pydanube.broker.flight_peers import FlightPeers
    from pydanube.broker.forwarding import Forwarding
    from pydanube.broker.joining import Joining
    from pydanube.broker.relaying import Relaying
    from pydanube.metadata.raft_store import RaftStore

SWEEP_SECONDS = 30.0
PARSING_THREADS = 2
VALIDATION_THREADS = 2
"""Of their own: no message waits for a schema that takes long to parse."""

CLIENT_SERVICES = (
    services.PRODUCER_SERVICE,
    services.CONSUMER_SERVICE,
    services.DISCOVERY,
    services.HEALTH_SERVICE,
    services.AUTH_SERVICE,
    services.STORAGE_SERVICE,
    services.SCHEMA_REGISTRY,
    services.EDGE_REPLICATOR_SERVICE,
    services.SUBSCRIPTION_CONTROL,
    services.TOPIC_CONTROL,
    services.SCHEMA_CONTROL,
    flight.SERVICE,
)
ADMIN_SERVICES = (
    services.BROKER_ADMIN,
    services.NAMESPACE_ADMIN,
    services.TOPIC_ADMIN,
    services.CLUSTER_ADMIN,
    services.SECURITY_ADMIN,
    services.SCHEMA_REGISTRY,
    services.SUBSCRIPTION_CONTROL,
    services.TOPIC_CONTROL,
    services.SCHEMA_CONTROL,
    services.METADATA_CONTROL,
)
_FAILING_NAMED_MAX = 10
_NOT_YET = "this version of the broker does not offer it"
_NO_NODES = "the metadata of this broker are not agreed on by Raft nodes; see meta_store"
_UNSERVED = frozenset(
    {
        services.EDGE_REPLICATOR_SERVICE,
        services.SECURITY_ADMIN,
    }
)

_log = get_logger(__name__)


class Urls(Struct, frozen=True, kw_only=True):
    """Under which addresses the broker is reached."""

    client: AdvertisedUrls
    admin: str
    metrics: str


class _Serving(Struct, frozen=True, kw_only=True):
    """What exists between recovery and the end."""

    broker_id: BrokerId
    opened: OpenMetadata
    metadata: BrokerStore
    """The store of `opened`."""
    storage: Storage
    segments: MetadataSegmentCatalog
    topics: TopicManager
    registration: Registration
    schemas: SchemaRegistry
    clustering: "Clustering | None"
    dead_letters: DeadLetters


class Broker:
    """Recovers, serves, drains. Whoever owns it puts its gates' tables on ports.

    Calls may come from the moment it exists; they are answered once `recover` has returned.
    """

    def __init__(
        self, config: BrokerConfig, machine: Machine, metrics: BrokerMetrics, peers: Peers | None
    ) -> None:
        self._config = config
        self._peers = peers
        self._peer_table = HandlerTable()
        """What other brokers of the cluster may call."""
        self._machine = machine
        self._metrics = metrics
        self._tasks = TaskScope(self._task_failed)
        self._storage_tasks = TaskScope(self._task_failed)
        """Outlive the others: what those still do must reach the disk."""
        self._parsing_threads = WorkerThreads("danube-parsing", PARSING_THREADS)
        self._validation_threads = WorkerThreads("danube-validation", VALIDATION_THREADS)
        self._serving: _Serving | None = None
        self._forwarding: Forwarding | None = None
        self._relaying: Relaying | None = None
        self._flight_peers: FlightPeers | None = None
        self._joining: Joining | None = None
        self._draining = False
        self._closing = False
        self._disk_watch: DiskWatch | None = None
        self._has_given_up = asyncio.Event()
        self.gave_up: GaveUp | None = None
        """Why it serves nothing any more, and what is to become of its process."""
        self.client_gate = Gate(CLIENT_SERVICES, metrics)
        self.admin_gate = Gate(ADMIN_SERVICES, metrics)

    async def recover(self, urls: Urls) -> None:
        """Bring everything back from the data directory and open the gates.

        Raises a DanubeError that names file and next step if the directory is in use, damaged or
        not a broker's; then nothing has been changed.
        """
        machine, config = self._machine, self._config
        metadata = None
        try:
            metadata = await open_metadata(
                config,
                machine,
                self._storage_tasks,
                self._peers,
                self._peer_table,
                urls.client.broker_url,
                partial(self._raft_opened, urls.admin),
            )
            segments = MetadataSegmentCatalog(metadata.store, config.storage.metadata_prefix)
            objects = open_store(config.storage, machine.files)
            storage = await Storage.open(
                machine.files,
                machine.clock,
                self._storage_tasks,
                config.storage,
                config.storage.local_wal_root,
                identity=f"{config.cluster_name}/{metadata.broker}",
                metrics=self._metrics.journal,
                segments=SegmentPlace(
                    store=objects,
                    catalog=segments,
                    randomness=machine.randomness,
                    metrics=self._metrics.segments,
                ),
            )
        except OSError as error:
            await self._give_up(metadata)
            raise Unavailable(f"cannot use the data directory: {error}") from error
        except BaseException:
            await self._give_up(metadata)
            raise
        await self._serve(metadata, segments, storage, objects, urls)

    def _raft_opened(self, admin_url: str, raft: "RaftStore") -> None:
        """Answer whoever is to add this broker to a cluster: it serves nothing before that."""
        from pydanube.broker.joining import Joining

        self._joining = joining = Joining(raft, admin_url)
        self.admin_gate.serve_early(joining.table)
        self.client_gate.waits_for = self.admin_gate.waits_for = joining.waits_for
        waits_for = joining.waits_for()
        if waits_for is not None:
            _log.warning(waits_for)

    async def _give_up(self, metadata: OpenMetadata | None) -> None:
        if metadata is not None:
            await metadata.close()
        await self._storage_tasks.close()

    async def _serve(
        self,
        metadata: OpenMetadata,
        segments: MetadataSegmentCatalog,
        storage: Storage,
        objects: ObjectStore,
        urls: Urls,
    ) -> None:
        clock = self._machine.clock
        catalog = Catalog(metadata.store)
        clustering = self._clustering(metadata, segments, urls)
        dead_letters = DeadLetters(urls.client.connect_url)
        tools = SchemaTools(protobuf_compiler=ProcessProtobufCompiler())
        schemas = SchemaRegistry(metadata.store, clock, self._parsing_threads, tools)
        topics = TopicManager(
            catalog=catalog,
            storage=storage,
            clock=clock,
            tasks=self._tasks,
            settings=_topic_settings(self._config, urls.client.broker_url),
            dead_letters=dead_letters,
            observe=self._metrics.topic,
            inspection=InspectionContext(
                registry=schemas, threads=self._validation_threads, waiting=WaitingRoom()
            ),
        )
        dead_letters.publish_to(topics)
        registration = Registration(topics, schemas, clock)
        self._serving = _Serving(
            broker_id=metadata.broker,
            opened=metadata,
            metadata=metadata.store,
            storage=storage,
            segments=segments,
            topics=topics,
            registration=registration,
            schemas=schemas,
            clustering=clustering,
            dead_letters=dead_letters,
        )
        watch = self._disk_watch = self._watched_disks(self._serving)
        storage.on_failure = self._journal_failed
        self._storage_tasks.start(self._watch_disks(watch, clustering), "watch over the disk")
        await settle_what_is_known(
            metadata.store, catalog, storage, segments, objects, alone=clustering is None
        )
        if clustering is None:
            await topics.ensure_namespaces()
            await topics.restore()
            registration.restore()
        else:
            from pydanube.broker.load import LoadCounter

            count = LoadCounter(topics, self._metrics, clock, self._machine.usage)
            await clustering.join(topics, registration, count)
        storage.start_upkeep()
        self._measure(self._serving)
        self._tasks.start(self._sweep(registration), "sweep")
        self._open_gates(self._serving, urls)
        _log.info("serving", broker=metadata.broker, topics=len(topics))

    def _measure(self, serving: _Serving) -> None:
        """Say where metrics find what is true at the moment."""
        storage, topics, clustering = serving.storage, serving.topics, serving.clustering
        clock = self._machine.clock
        self._metrics.broker = str(serving.broker_id)
        self._metrics.read_from(
            Sources(
                topics=lambda: topic_readings(topics, clock.monotonic_ms()),
                unsynced_bytes=lambda: storage.unsynced_bytes,
                journal_failed=lambda: storage.failure is not None,
                journal_waiting=lambda: storage.waiting_for is not None,
                unexported_bytes=lambda: storage.unexported_bytes,
                topics_failing=lambda: len(storage.failing_exports()),
                process=read_process,
                cluster=clustering.reading if clustering is not None else None,
                mirrors=clustering.mirror_reading if clustering is not None else None,
            )
        )

    def _open_gates(self, serving: _Serving, urls: Urls) -> None:
        client_table, admin_table = self._client_table(urls), self._admin_table(urls)
        if serving.clustering is not None:
            from pydanube.broker.forwarding import Forwarding
            from pydanube.cluster.readiness import Readiness

            assert self._peers is not None
            assert serving.opened.sharing is not None
            directory, clock = serving.clustering.directory, self._machine.clock
            self._forwarding = Forwarding(
                serving.topics,
                directory,
                serving.broker_id,
                self._peers.connect,
                Readiness(
                    serving.opened.sharing.barrier,
                    directory,
                    serving.topics,
                    serving.broker_id,
                    clock,
                ),
            )
            self._forwarding.wrap_client(client_table)
            self._forwarding.wrap_admin(admin_table)
        self.client_gate.open(client_table)
        self.admin_gate.open(admin_table)

    def _clustering(
        self, metadata: OpenMetadata, segments: MetadataSegmentCatalog, urls: Urls
    ) -> "Clustering | None":
        if metadata.sharing is None:
            return None
        # Loaded by those who need it: a broker alone starts sooner without.
        from pydanube.balance.settings import rebalance_settings
        from pydanube.broker.clustering import Circumstances, Clustering
        from pydanube.cluster.balancing import BalanceSettings
        from pydanube.cluster.membership import LeaseTerms
        from pydanube.cluster.records import BrokerRecord

        assert self._peers is not None
        config, clock = self._config, self._machine.clock
        return Clustering(
            Circumstances(
                store=metadata.store,
                segments=segments,
                broker=metadata.broker,
                record=BrokerRecord(
                    broker_url=urls.client.broker_url,
                    connect_url=urls.client.connect_url,
                    admin_url=urls.admin,
                    metrics_url=urls.metrics,
                    raft_address=metadata.sharing.peer_address,
                    started_ms=clock.now_ms(),
                ),
                leadership=metadata.sharing.leadership,
                resign=metadata.sharing.resign,
                terms=LeaseTerms(ttl_ms=config.cluster.lease_ms),
                clock=clock,
                tasks=self._tasks,
                moves_reliable=config.storage.mode != "local",
                cluster=config.cluster_name,
                connect=self._peers.connect,
                randomness=self._machine.randomness,
                mirrors=config.mirrors,
                balance=BalanceSettings(
                    report_seconds=config.load_manager.load_report_interval_seconds,
                    rebalance=rebalance_settings(config.load_manager),
                ),
                table=self._peer_table,
                mirror_metrics=self._metrics.mirrors,
                count_assignment=lambda action: self._metrics.assigned(
                    str(metadata.broker), action
                ),
            )
        )

    def _client_table(self, urls: Urls) -> HandlerTable:
        assert self._serving is not None
        topics, registration = self._serving.topics, self._serving.registration
        table = _refusing(CLIENT_SERVICES)
        ProducerServicer(registration, self._metrics).register(table)
        clustering = self._serving.clustering
        if clustering is not None:
            from pydanube.broker.relaying import Relaying

            assert self._peers is not None
            self._relaying = Relaying(topics, self._machine.clock, self._tasks, self._peers.connect)
        ConsumerServicer(
            registration,
            self._machine.clock,
            urls.client.broker_url,
            self._metrics,
            self._relaying,
        ).register(table)
        directory = clustering.directory if clustering is not None else None
        DiscoveryServicer(topics, registration, urls.client, self._metrics, directory).register(
            table
        )
        StorageServicer(topics).register(table)
        ControlServicer(topics, registration).register(table)
        SchemaRegistryServicer(self._serving.schemas, registration.schemas).register(table)
        self._serve_flight(self._serving, urls, table)
        return table

    def _serve_flight(self, serving: _Serving, urls: Urls, table: HandlerTable) -> None:
        cluster, me = self._config.cluster_name, serving.broker_id
        if serving.clustering is not None:
            from pydanube.broker.flight_peers import FlightPeers

            assert self._peers is not None
            directory = serving.clustering.directory
            self._flight_peers = FlightPeers(cluster, me, directory, self._peers.connect)
        servicer = FlightServicer(
            serving.topics,
            serving.registration,
            self._machine.clock,
            self._metrics,
            urls.client.connect_url,
            store_url(self._config.storage),
            self._flight_peers,
        )
        servicer.register(table)
        if self._flight_peers is not None:
            from pydanube.broker.flight_peers import FlightPeerService

            FlightPeerService(cluster, me, servicer.parts).add_to(self._peer_table)

    def _admin_table(self, urls: Urls) -> HandlerTable:
        assert self._serving is not None
        topics, registration = self._serving.topics, self._serving.registration
        broker_id = self._serving.broker_id
        table = _refusing(ADMIN_SERVICES)
        clustering = self._serving.clustering
        this = ThisBroker(
            id=broker_id, urls=urls.client, admin_url=urls.admin, metrics_url=urls.metrics
        )
        BrokerAdminServicer(topics, this, clustering).register(table)
        raft = self._serving.opened.raft
        if raft is None:
            services.unimplemented(table, services.CLUSTER_ADMIN, _NO_NODES)
        else:
            from pydanube.broker.servicers.cluster_admin import ClusterAdminServicer

            ClusterAdminServicer(raft).register(table)
        NamespaceAdminServicer(topics).register(table)
        TopicAdminServicer(
            topics, registration, self._serving.schemas, broker_id, clustering
        ).register(table)
        ControlServicer(topics, registration).register(table)
        SchemaRegistryServicer(self._serving.schemas, registration.schemas).register(table)
        MetadataControlServicer(
            self._serving.opened,
            self._serving.segments,
            self._machine.clock,
            cluster=self._config.cluster_name,
            segments_url=store_url(self._config.storage),
        ).register(table)
        return table

    # A disk that takes nothing.

    def _watched_disks(self, serving: _Serving) -> DiskWatch:
        storage, metadata = serving.storage, serving.opened.on_disk

        def writing_since(disk: Storage | DiskStore) -> int | None:
            # A broker alone waits for room as long as it takes: nobody else could serve its topics.
            is_patient = disk.waiting_for is not None and serving.opened.is_alone
            return None if is_patient else disk.writing_since_ms

        disks = [
            Disk(
                name="the journal",
                failure=lambda: storage.failure,
                writing_since_ms=lambda: writing_since(storage),
                waiting_for=lambda: storage.waiting_for,
            )
        ]
        if metadata is not None:
            disks.append(
                Disk(
                    name="the metadata",
                    failure=lambda: of_disk(metadata.failure),
                    writing_since_ms=lambda: writing_since(metadata),
                    waiting_for=lambda: metadata.waiting_for,
                )
            )
        return DiskWatch(self._machine.clock, disks, self._config.storage.sync_seconds_max)

    async def _watch_disks(self, watch: DiskWatch, clustering: "Clustering | None") -> None:
        """Give everything up once this broker cannot write, where that helps anybody."""
        assert self._serving is not None
        opened = self._serving.opened
        trouble = await watch.until(lambda trouble: self._matters(trouble, not opened.is_alone))
        is_alone = opened.is_alone
        _log.error("this broker cannot write and gives its topics up", cause=trouble.why)
        if clustering is not None and not is_alone:
            await clustering.give_up(trouble.why)
        self.gave_up = GaveUp(
            why=trouble.why,
            hangs=not trouble.is_final,
            begins_anew=not is_alone and not self._draining,
        )
        self._has_given_up.set()

    def _matters(self, trouble: Trouble, is_clustered: bool) -> bool:
        if not trouble.is_final:
            # It may pass. Only a cluster has others meanwhile, and only a stop cannot wait.
            return is_clustered or self._draining
        if self._closing:
            return False  # What has been closed takes nothing either.
        # A stop of a broker alone goes without its journal.
        return is_clustered or not self._draining

    async def wait_until_given_up(self) -> GaveUp:
        """Return when this broker serves nothing any more, for it cannot write."""
        await self._has_given_up.wait()
        assert self.gave_up is not None
        return self.gave_up

    async def wait_until_stuck(self) -> None:
        """Return when this broker has given up for a write that hangs, and never otherwise."""
        gave_up = await self.wait_until_given_up()
        if not gave_up.hangs:
            await asyncio.Event().wait()  # What failed can be closed.

    # Health.

    @property
    def failure(self) -> DanubeError | None:
        """Why the broker can no longer keep its promises, if so."""
        if self._serving is None:
            return None
        failure = self._serving.storage.failure or self._serving.metadata.failure
        if failure is None and self._disk_watch is not None and self._disk_watch.trouble:
            return self._disk_watch.trouble.error()
        return failure

    @property
    def waiting_for(self) -> str | None:
        """What it has no room for at the moment, and the remedy; it goes on once it has."""
        if self._serving is None:
            return None
        return self._serving.storage.waiting_for or self._serving.metadata.waiting_for

    @property
    def to_be_added(self) -> str | None:
        """What an operator must do before it can serve at all; None if nothing."""
        return self._joining.waits_for() if self._joining is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether it takes messages."""
        is_open = self.client_gate.is_open and not self._draining
        return is_open and self.failure is None and self.waiting_for is None

    @property
    def notes(self) -> list[str]:
        """What an operator should see to, though everything is still served."""
        if self._serving is None:
            return []
        storage = self._serving.storage
        clustering = self._serving.clustering
        found = (
            self.waiting_for,
            self._serving.opened.note,
            clustering.note if clustering is not None else None,
        )
        notes = [note for note in found if note is not None]
        if storage.store_failure is not None:
            notes.append(f"the segment store takes nothing: {storage.store_failure}")
        failing = storage.failing_exports()
        for topic, error in failing[:_FAILING_NAMED_MAX]:
            notes.append(f"topic {topic} cannot be exported: {error}")
        if len(failing) > _FAILING_NAMED_MAX:
            notes.append(f"{len(failing) - _FAILING_NAMED_MAX} more topics cannot be exported")
        return notes + stopped_notes(self._serving.topics)

    # The end.

    async def drain(self) -> None:
        """Refuse new messages, make all accepted ones and every ack durable, end the streams."""
        self._draining = True
        if (
            self._serving is not None
            and self._serving.clustering is not None
            and self.gave_up is None
        ):
            # The gates stay open: whoever asks is told where topics have gone.
            await self._leave(self._serving.clustering)
        self.client_gate.close()
        self.admin_gate.close()
        if self._serving is not None:
            self._serving.topics.drain()
            await _flush(self._serving.storage)
            self._serving.topics.close()
            # Acks of this very moment are journaled by the event loop's next turn.
            await self._machine.clock.sleep(0)
            await _flush(self._serving.storage)
            if self._config.storage.mode != "local":
                # Another broker may serve these topics next, and it has no other copy.
                await self._serving.storage.seal_all(self._config.storage.segments.shutdown_seconds)

    async def _leave(self, clustering: "Clustering") -> None:
        try:
            await clustering.leave(self._config.storage.segments.shutdown_seconds)
        except DanubeError as error:
            _log.warning("left without a word to the cluster", cause=str(error))

    async def close(self) -> None:
        """Release the data directory. Call `drain` first unless the broker never recovered."""
        self._draining = self._closing = True
        self.client_gate.close()  # Calls that a recovery in vain has held learn of it at once.
        self.admin_gate.close()
        await self._tasks.close()
        if self._forwarding is not None:
            await self._forwarding.close()
        if self._relaying is not None:
            await self._relaying.close()
        if self._flight_peers is not None:
            await self._flight_peers.close()
        if self._serving is not None:
            await self._serving.dead_letters.close()
            if self._serving.clustering is not None:
                await self._serving.clustering.close()
            await self._serving.storage.close()
            await self._serving.opened.close()
            self._serving = None
        self._parsing_threads.stop()
        self._validation_threads.stop()
        await self._storage_tasks.close()

    async def _sweep(self, registration: Registration) -> None:
        while True:
            await self._machine.clock.sleep(SWEEP_SECONDS)
            try:
                await registration.sweep()
            except DanubeError as error:
                _log.warning("sweep not finished; it will be tried again", cause=str(error))

    def _journal_failed(self, error: DanubeError) -> None:
        _log.error("the journal has stopped; restart the broker to recover", cause=str(error))
        if self._disk_watch is not None:
            self._disk_watch.wake()

    def _task_failed(self, name: str, error: BaseException) -> None:
        _log.error("a task failed", error=error, task=name)


async def _flush(storage: Storage) -> None:
    try:
        await storage.flush()
    except Unavailable as error:
        # Whoever waits for the journal has been told; the next start finds what is durable.
        _log.warning("stopping without the journal", cause=str(error))


def _topic_settings(config: BrokerConfig, broker_url: str) -> TopicSettings:
    return TopicSettings(
        auto_create=config.auto_create_topics,
        window=config.dispatch.max_unacked_messages,
        policies=config.policies,
        bootstrap_namespaces=config.bootstrap_namespaces,
        broker_url=broker_url,
        replicas_max=1 if config.storage.mode == "local" else REPLICAS_MAX,
    )


def _refusing(service_names: tuple[str, ...]) -> HandlerTable:
    table = HandlerTable()
    for service in service_names:
        if service in _UNSERVED:
            services.unimplemented(table, service, _NOT_YET)
    return table
