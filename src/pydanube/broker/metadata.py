"""Opens the metadata that a configuration asks for, and knows who this broker is in it."""

from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from pydanube.broker.addresses import Address
from pydanube.broker.config import BrokerConfig
from pydanube.broker.identity import broker_identity
from pydanube.errors import DanubeError
from pydanube.metadata.local_store import LocalMetadataStore
from pydanube.metadata.node import NodeSettings
from pydanube.metadata.raft.settings import RaftSettings
from pydanube.metadata.raft_store import RaftPlace, RaftStore
from pydanube.metadata.store import MetadataStore
from pydanube.metadata.transport import Connect
from pydanube.model.ids import BrokerId
from pydanube.observability.logging import get_logger
from pydanube.runtime.machine import Machine
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import Engine, HandlerTable

_TICKS_PER_HEARTBEAT = 4

_log = get_logger(__name__)


class BrokerStore(MetadataStore, Protocol):
    """A store that tells whether it still works."""

    @property
    def failure(self) -> DanubeError | None:
        """Why it takes nothing any more; None while all is well."""


class Peers(Struct, frozen=True, kw_only=True):
    """How brokers of a cluster talk to each other."""

    engine: Engine
    connect: Connect


class OpenMetadata(Struct, frozen=True, kw_only=True):
    """The store, and this broker's number in it."""

    store: BrokerStore
    broker: BrokerId
    raft: RaftStore | None = None
    """The same store, if it is shared by Raft."""


async def open_metadata(
    config: BrokerConfig,
    machine: Machine,
    tasks: TaskScope,
    peers: Peers,
    table: HandlerTable,
    broker_url: str,
) -> OpenMetadata:
    """Open the store and wait until it can be read and written.

    In a cluster that takes until most of it is there; `table` is served to other brokers from the
    beginning.
    """
    directory = config.meta_store.data_dir
    if not config.is_clustered:
        store = await LocalMetadataStore.open(machine.files, machine.clock, tasks, directory)
        return OpenMetadata(store=store, broker=await broker_identity(machine, directory))
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
        ),
        settings=node_settings(config),
        table=table,
    )
    try:
        _log.info("waiting for the cluster", seeds=",".join(config.meta_store.seed_nodes))
        await raft.wait_until_ready()
    except BaseException:
        await raft.close()
        raise
    return OpenMetadata(store=raft, broker=BrokerId(raft.node), raft=raft)


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
    )
