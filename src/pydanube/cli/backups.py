"""What `danube backup` does with files, and what it says of them."""

from pathlib import Path

from msgspec import Struct

from pydanube.broker.config import BrokerConfig
from pydanube.broker.restoring import Restored, restore_backup
from pydanube.errors import AlreadyExists, NotFound
from pydanube.metadata.backup import (
    Manifest,
    TopicHistory,
    decode_backup,
    decode_manifest,
    encode_backup,
)
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.files import Files, read_whole, write_atomically
from pydanube.runtime.system_files import SystemFiles


class BackupReport(Struct, frozen=True, kw_only=True):
    """What is in a backup, and what is not."""

    file: str
    cluster: str
    broker: int
    revision: int
    created_ms: int
    subscriptions: int
    best_effort_topics: int
    messages: str
    topics: list[TopicHistory]
    """Reliable topics, and which of their messages are in the segments that the backup names."""


async def store_backup(path: Path, manifest_json: bytes, state: bytes) -> BackupReport:
    """Write a backup's file whole; AlreadyExists if there is one of that name."""
    files = SystemFiles()
    if await files.exists(str(path)):
        raise AlreadyExists(f"{path} is there already; choose another name")
    manifest = decode_manifest(manifest_json, str(path))
    directory = str(path.parent)
    await files.make_directory(directory)
    await write_atomically(files, directory, path.name, encode_backup(manifest, state))
    return await check_backup(path)


async def check_backup(path: Path) -> BackupReport:
    """Read a backup as a whole; Corruption if a byte of it is not what was written."""
    manifest, _ = decode_backup(await _read(SystemFiles(), path), str(path))
    return _report(path, manifest)


async def put_in_place(path: Path, config: BrokerConfig, *, replace: bool) -> Restored:
    """Restore a backup for a broker of this configuration."""
    files = SystemFiles()
    data = await _read(files, path)
    return await restore_backup(files, SystemClock(), config, data, str(path), replace=replace)


async def _read(files: Files, path: Path) -> bytes:
    if not await files.exists(str(path)):
        raise NotFound(f"there is no file {path}")
    return await read_whole(files, str(path))


def _report(path: Path, manifest: Manifest) -> BackupReport:
    return BackupReport(
        file=str(path),
        cluster=manifest.cluster,
        broker=manifest.broker,
        revision=manifest.revision,
        created_ms=manifest.created_ms,
        subscriptions=manifest.subscriptions,
        best_effort_topics=manifest.best_effort_topics,
        messages=(
            f"none are in it: those listed below are in segments at {manifest.segments}, newer "
            "ones in the journals of brokers; keep both"
        ),
        topics=manifest.topics,
    )
