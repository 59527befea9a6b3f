"""Opens the metadata that a configuration asks for."""

from pydanube.broker.config import BrokerConfig
from pydanube.broker.identity import broker_identity
from pydanube.broker.metadata import OpenMetadata, Peers
from pydanube.metadata.local_store import LocalMetadataStore
from pydanube.runtime.machine import Machine
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import HandlerTable


async def open_metadata(
    config: BrokerConfig,
    machine: Machine,
    tasks: TaskScope,
    peers: Peers | None,
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
        broker = await broker_identity(machine, directory)
        return OpenMetadata(store=store, broker=broker, on_disk=store)
    # Loaded by those who need it: a broker alone starts sooner without.
    from pydanube.broker.shared_metadata import open_shared

    assert peers is not None, "brokers of a cluster have a way to talk to each other"
    return await open_shared(config, machine, tasks, peers, table, broker_url)
