"""Opens the metadata that a configuration asks for."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pydanube.broker.config import BrokerConfig
from pydanube.broker.errors import InvalidConfig
from pydanube.broker.identity import broker_identity
from pydanube.broker.metadata import OpenMetadata, Peers
from pydanube.metadata.local_store import LocalMetadataStore
from pydanube.runtime.files import Files
from pydanube.runtime.machine import Machine
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import HandlerTable

if TYPE_CHECKING:
    from pydanube.metadata.raft_store import RaftStore


async def open_metadata(
    config: BrokerConfig,
    machine: Machine,
    tasks: TaskScope,
    peers: Peers | None,
    table: HandlerTable,
    broker_url: str,
    opened: "Callable[[RaftStore], None]",
) -> OpenMetadata:
    """Open the store and wait until it can be read and written.

    In a cluster that takes until most of it is there, or until somebody adds this broker to it;
    `table` is served to other brokers from the beginning, and `opened` is told of a Raft node that
    is about to wait.
    """
    directory = config.meta_store.data_dir
    if not config.is_clustered:
        await _refuse_a_past_in_a_cluster(machine.files, directory)
        store = await LocalMetadataStore.open(machine.files, machine.clock, tasks, directory)
        broker = await broker_identity(machine, directory)
        return OpenMetadata(store=store, broker=broker, on_disk=store)
    # Loaded by those who need it: a broker alone starts sooner without.
    from pydanube.broker.shared_metadata import open_shared

    assert peers is not None, "brokers of a cluster have a way to talk to each other"
    return await open_shared(config, machine, tasks, peers, table, broker_url, opened)


async def _refuse_a_past_in_a_cluster(files: Files, directory: str) -> None:
    """Refuse to go on from before a broker was in a cluster: what came since is in Raft's files."""
    if any(name.startswith("raft-") for name in await files.list_names(directory)):
        raise InvalidConfig(
            f"{directory} holds the metadata of a broker of a cluster, be it one of one broker. "
            "Start it with its configuration file, where meta_store.backend is raft; or give it "
            "another directory"
        )
