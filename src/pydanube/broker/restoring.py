"""Puts a backup of the metadata where a broker finds it; nothing that is there is deleted."""

from msgspec import Struct

from pydanube.broker.config import BrokerConfig
from pydanube.errors import Conflict, InvalidRequest, NotSupported
from pydanube.metadata import local_format, raft_format
from pydanube.metadata.backup import Manifest, decode_backup, restored_state
from pydanube.runtime.clock import Clock
from pydanube.runtime.files import Files, read_whole, write_atomically
from pydanube.storage.journal.recovery import survey_all

_NODE_ID = raft_format.NODE_ID_NAME
_LOCKS = (local_format.LOCK_NAME, raft_format.LOCK_NAME)


class Restored(Struct, frozen=True, kw_only=True):
    """What was put in place."""

    directory: str
    revision: int
    topics: int
    broker: str
    """The number the broker has from now on; empty if it draws a new one."""
    kept: str
    """Where the metadata are that were there before; empty if there were none."""
    next: str


async def restore_backup(
    files: Files, clock: Clock, config: BrokerConfig, data: bytes, path: str, *, replace: bool
) -> Restored:
    """Put a backup in place of a stopped broker's metadata.

    Conflict if there are metadata and `replace` was not asked for, or a broker runs; Corruption if
    the backup is damaged. Then nothing was changed.
    """
    manifest, state = decode_backup(data, path)
    directory = config.meta_store.data_dir.rstrip("/")
    if config.meta_store.backend == "etcd":
        raise NotSupported("metadata in etcd are restored by etcd: etcdutl snapshot restore")
    if manifest.cluster != config.cluster_name:
        raise InvalidRequest(
            f"{path} is of cluster {manifest.cluster}, this broker belongs to "
            f"{config.cluster_name} (cluster_name)"
        )
    number = await _number(files, config, directory, manifest)
    kept = await _put_aside(files, clock, directory, replace=replace)
    await files.make_directory(directory)
    snapshot = local_format.encode_snapshot_file(0, restored_state(state, clock.now_ms()))
    await write_atomically(files, directory, local_format.SNAPSHOT_NAME, snapshot)
    if number:
        await write_atomically(files, directory, _NODE_ID, f"{number}\n".encode())
    return Restored(
        directory=directory,
        revision=manifest.revision,
        topics=len(manifest.topics) + manifest.best_effort_topics,
        broker=number,
        kept=kept,
        next="compare journal and segments with it: danube recover, then danube recover --apply",
    )


async def _number(files: Files, config: BrokerConfig, directory: str, manifest: Manifest) -> str:
    """Return the broker's number: the one it had, for its journal belongs to that one."""
    path = f"{directory}/{_NODE_ID}"
    if await files.exists(path):
        return (await read_whole(files, path)).decode("ascii", "replace").strip()
    journal = config.storage.local_wal_root
    if await files.exists(journal):
        header = (await survey_all(files, journal, tells_apart=True)).contents.header
        if header is not None and header.identity.startswith(f"{config.cluster_name}/"):
            return header.identity.rpartition("/")[2]
    # Numbers of a cluster's nodes are never given twice; a broker alone may have its own again.
    return "" if manifest.shared_by else str(manifest.broker)


async def _put_aside(files: Files, clock: Clock, directory: str, *, replace: bool) -> str:
    names = set(await files.list_names(directory)) if await files.exists(directory) else set()
    if not names - {_NODE_ID, *_LOCKS}:
        return ""
    for name in _LOCKS:
        if name in names:
            lock = await files.lock(f"{directory}/{name}")
            if lock is None:
                raise Conflict(f"the metadata in {directory} are in use; stop the broker first")
            await lock.release()
    if not replace:
        raise Conflict(
            f"{directory} holds metadata already. Nothing was changed; --replace puts the backup "
            "in their place and keeps them beside it"
        )
    aside = f"{directory}.before-{clock.now_ms()}"
    await files.rename(directory, aside)
    return aside
