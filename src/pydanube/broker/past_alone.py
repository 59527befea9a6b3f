"""What becomes of a broker's metadata from when it stood alone, once there may be a cluster."""

from msgspec.structs import replace

from pydanube.broker.config import BrokerConfig
from pydanube.broker.errors import InvalidConfig
from pydanube.metadata import keys
from pydanube.metadata.local_format import SNAPSHOT_NAME as LOCAL_SNAPSHOT_NAME
from pydanube.metadata.local_import import local_state
from pydanube.metadata.raft_format import SNAPSHOT_NAME as RAFT_SNAPSHOT_NAME
from pydanube.metadata.state_machine import StateMachine
from pydanube.observability.logging import get_logger
from pydanube.runtime.files import Files

_log = get_logger(__name__)


async def heeding_a_past_alone(config: BrokerConfig, files: Files) -> BrokerConfig:
    """Return the configuration to run with, by what the data directory holds from before.

    Without seeds a broker that stood alone goes on so: its way into a cluster is an operator's
    decision, since versions before clusters of one would not see what happens afterwards.
    """
    meta_store = config.meta_store
    directory = meta_store.data_dir
    if await files.exists(f"{directory}/{RAFT_SNAPSHOT_NAME}"):
        return config  # It has been in a cluster since.
    has_others = len(meta_store.seed_nodes) > 1 or meta_store.join
    if has_others or meta_store.backend == "etcd":
        await _refuse_topics_of_one_journal(directory, files, joins=meta_store.join)
        return config
    stood_alone = await files.exists(f"{directory}/{LOCAL_SNAPSHOT_NAME}")
    if meta_store.backend != "raft" or meta_store.seed_nodes or not stood_alone:
        return config
    _log.warning(
        "this broker stood alone, and goes on so: others cannot join it. To let them, start it "
        "with its own Raft address as the only one in meta_store.seed_nodes",
        directory=directory,
    )
    return replace(config, meta_store=replace(meta_store, backend="local"))


async def _refuse_topics_of_one_journal(directory: str, files: Files, *, joins: bool) -> None:
    """Refuse to found a cluster with others on topics that one broker's journal alone has.

    Whoever is given such a topic would begin it anew.
    """
    state = await local_state(files, directory) if await files.exists(directory) else None
    machine = StateMachine()
    if state is not None:
        machine.restore(state)
    if joins and machine.entries_below(keys.RESTORES):
        return  # All of a cluster were restored, and this one follows the first.
    if machine.entries_below(keys.TOPICS):
        raise InvalidConfig(
            f"{directory} holds the topics of a broker that stood alone. Start it once with its "
            "own address as the only one in meta_store.seed_nodes, so that it takes them into a "
            "cluster, and let the others join (--join); or give it an empty directory"
        )
