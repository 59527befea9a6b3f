"""The data directory of a broker: one broker at a time, and the number that names it."""

from pydanube.broker.config import BrokerConfig
from pydanube.errors import Conflict, Corruption
from pydanube.model.ids import BrokerId
from pydanube.runtime.files import FileLock, Files, read_whole, write_atomically
from pydanube.runtime.machine import Machine

_LOCK = "lock"
_NODE_ID = "node_id"
_BROKER_IDS = 2**53 - 1


class DataDirectory:
    """Held by one broker from `claim` to `release`."""

    def __init__(self, locks: list[FileLock], broker_id: BrokerId) -> None:
        self._locks = locks
        self.broker_id = broker_id

    @classmethod
    async def claim(cls, machine: Machine, config: BrokerConfig) -> "DataDirectory":
        """Take the directories of metadata and journal; Conflict while another broker has them."""
        locks: list[FileLock] = []
        try:
            for directory in (config.meta_store.data_dir, config.storage.local_wal_root):
                await machine.files.make_directory(directory)
                lock = await machine.files.lock(f"{directory}/{_LOCK}")
                if lock is None:
                    raise Conflict(
                        f"{directory} is in use by another broker; stop that one, or give this "
                        "one a data directory of its own (--data-dir)"
                    )
                locks.append(lock)
            broker_id = await _broker_id(machine, config.meta_store.data_dir)
        except BaseException:
            await _release(locks)
            raise
        return cls(locks, broker_id)

    async def release(self) -> None:
        """Let another broker have the directories."""
        await _release(self._locks)


async def _release(locks: list[FileLock]) -> None:
    for lock in locks:
        await lock.release()


async def _broker_id(machine: Machine, directory: str) -> BrokerId:
    """Return the number drawn when the directory was first used."""
    files = machine.files
    if await files.exists(f"{directory}/{_NODE_ID}"):
        return await _stored_id(files, f"{directory}/{_NODE_ID}")
    broker_id = BrokerId(1 + machine.randomness.below(_BROKER_IDS))
    await write_atomically(files, directory, _NODE_ID, b"%d\n" % broker_id)
    return broker_id


async def _stored_id(files: Files, path: str) -> BrokerId:
    text = (await read_whole(files, path)).strip()
    if not text.isdigit() or not 1 <= int(text) < 2**64:
        raise Corruption(
            f"{path} should hold the broker's number and holds {text[:40]!r}; restore it from a "
            "backup, or write the broker_id that the journal's error message names"
        )
    return BrokerId(int(text))
