"""Opens metadata that several brokers share: by Raft among themselves, or in etcd."""

from collections.abc import Callable
from urllib.parse import urlsplit

from pydanube.broker.addresses import Address
from pydanube.broker.config import BrokerConfig
from pydanube.broker.etcd_metadata import open_etcd
from pydanube.broker.identity import broker_identity
from pydanube.broker.metadata import OpenMetadata, Peers, Sharing
from pydanube.cluster.election import KeyElection
from pydanube.cluster.membership import RENEWALS, LeaseTerms
from pydanube.metadata.node import NodeSettings
from pydanube.metadata.raft.settings import RaftSettings
from pydanube.metadata.raft_store import RaftPlace, RaftStore
from pydanube.model.ids import BrokerId
from pydanube.observability.logging import get_logger
from pydanube.runtime.machine import Machine
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import HandlerTable

STOP_GRACE_SECONDS = 0.5
_TICKS_PER_HEARTBEAT = 4

_log = get_logger(__name__)


async def open_shared(
    config: BrokerConfig,
    machine: Machine,
    tasks: TaskScope,
    peers: Peers,
    table: HandlerTable,
    broker_url: str,
    opened: Callable[[RaftStore], None],
) -> OpenMetadata:
    """Open the store and wait until most of the cluster is there."""
    directory = config.meta_store.data_dir
    if config.meta_store.backend == "etcd":
        return await _share_by_etcd(config, machine, peers, table, broker_url)
    address = config.broker.raft_address
    raft = await RaftStore.open(
        machine,
        tasks,
        peers.engine,
        peers.connect,
        RaftPlace(
            directory=directory,
            host=address.host,
            port=address.port,
            address=advertised_raft_address(address, broker_url),
            seed_nodes=config.meta_store.seed_nodes,
            join=config.meta_store.join,
            cluster_name=config.cluster_name,
        ),
        settings=node_settings(config),
        table=table,
    )
    try:
        opened(raft)
        _log.info("waiting for the cluster", seeds=",".join(config.meta_store.seed_nodes))
        await raft.wait_until_ready()
    except BaseException:
        await raft.close()
        raise
    sharing = Sharing(
        leadership=raft,
        peer_address=raft.node_info().address,
        barrier=raft.read_barrier,
        resign=raft.give_up_lead,
        end=_nothing_to_end,
    )
    return OpenMetadata(
        store=raft, broker=BrokerId(raft.node), sharing=sharing, raft=raft, on_disk=raft
    )


async def _nothing_to_end() -> None:
    """A Raft node hands over when it is closed."""


async def _share_by_etcd(
    config: BrokerConfig,
    machine: Machine,
    peers: Peers,
    table: HandlerTable,
    broker_url: str,
) -> OpenMetadata:
    place = await open_etcd(config, machine)
    try:
        broker = await broker_identity(machine, config.meta_store.data_dir)
        address = config.broker.raft_address
        server = await peers.engine.serve(table, address.host, address.port)
    except BaseException:
        await place.store.close()
        await place.lock.release()
        raise
    terms = LeaseTerms(ttl_ms=config.cluster.lease_ms)
    election = KeyElection(place.store, machine.clock, broker, terms)
    standing = TaskScope(_report)
    standing.start(election.run(), "election of a leader")

    async def resign(_: float) -> None:
        await standing.close()
        await election.resign()

    async def end() -> None:
        await standing.close()
        await election.resign()
        await server.stop(STOP_GRACE_SECONDS)

    listening = Address(address.host, server.port)
    return OpenMetadata(
        store=place.store,
        broker=broker,
        sharing=Sharing(
            leadership=election,
            peer_address=advertised_raft_address(listening, broker_url),
            barrier=place.store.read_barrier,
            resign=resign,
            end=end,
        ),
        etcd=place.store,
        lock=place.lock,
    )


def _report(name: str, error: BaseException) -> None:
    _log.error("a task failed", error=error, task=name)


def advertised_raft_address(address: Address, broker_url: str) -> str:
    """Return where other brokers reach the Raft port: under the broker's advertised host.

    A broker that is reached on this machine alone is known by the address it listens on.
    """
    host = urlsplit(broker_url).hostname or address.host
    if host in ("0.0.0.0", "127.0.0.1", "::", "::1"):
        host = address.host
    return f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"


def node_settings(config: BrokerConfig) -> NodeSettings:
    """Return the configured times in ticks."""
    tick_ms = max(config.cluster.heartbeat_ms // _TICKS_PER_HEARTBEAT, 5)
    return NodeSettings(
        tick_ms=tick_ms,
        raft=RaftSettings(
            heartbeat_ticks=max(config.cluster.heartbeat_ms // tick_ms, 1),
            election_ticks=max(config.cluster.election_ms // tick_ms, 2),
        ),
        # As long as living brokers take to renew theirs at any other time.
        lease_grace_ms=config.cluster.lease_ms // RENEWALS,
    )
