"""Where a run takes place: three brokers on machines of their own, disks that can go bad, a store.

As root every broker has a network namespace, whose cable can be pulled; elsewhere all are on
loopback, and partitions are left out of the run. Disks go bad where there is a C compiler.
"""

import errno
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import structs

from tests.chaos.schedule import BROKERS, FAULTS, BrokerFault, Storage
from tests.support import disk_shim
from tests.support.broker_process import BrokerProcess
from tests.support.cluster_processes import ClusterProcesses, Machine
from tests.support.disk_shim import DiskShim
from tests.support.namespaces import Machines
from tests.support.object_store_servers import seaweedfs

JOURNAL = "wal/*"
SLOW_SYNC_MS = 700
_DISK_FAULTS: tuple[BrokerFault, ...] = ("EIO", "ENOSPC", "slow sync", "stuck sync")
_SEGMENTS = {"seal_bytes": 256 * 1024, "seal_seconds": 5}
_ROTATION = {"max_bytes": 1024 * 1024}


def possible_faults() -> list[BrokerFault]:
    """Return what this machine can do to a broker."""
    without: set[BrokerFault] = set()
    if os.geteuid() != 0 or shutil.which("ip") is None:
        without.add("partition")
    if disk_shim._COMPILER is None:
        without |= set(_DISK_FAULTS)
    return [fault for fault in FAULTS if fault not in without]


class Ground:
    """A cluster, and everything that can be done to its brokers."""

    def __init__(
        self, cluster: ClusterProcesses, machines: Machines | None, disks: Sequence[DiskShim]
    ) -> None:
        self.brokers: Sequence[BrokerProcess] = cluster.brokers
        self._cluster = cluster
        self._machines = machines
        self._disks = disks

    @property
    def urls(self) -> list[str]:
        return self._cluster.urls

    def pause(self, number: int, *, until: bool = False) -> None:
        process = self.brokers[number].process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT if until else signal.SIGSTOP)

    def cut_off(self, number: int) -> None:
        assert self._machines is not None, "partitions need machines of their own"
        self._machines.cut_off(number)

    def reconnect(self, number: int) -> None:
        if self._machines is not None:
            self._machines.heal(number)

    def strike_disk(self, number: int, fault: BrokerFault) -> None:
        disk = self._disks[number]
        match fault:
            case "EIO":
                disk.fail("write", "sync", error=errno.EIO, path=JOURNAL)
            case "ENOSPC":
                disk.fail("write", error=errno.ENOSPC, path=JOURNAL, room=4096)
            case "slow sync":
                disk.delay("sync", milliseconds=SLOW_SYNC_MS)
            case "stuck sync":
                disk.hang("sync", path=JOURNAL)

    def mend_disk(self, number: int) -> None:
        if self._disks:
            self._disks[number].heal()

    def lose_disk(self, number: int) -> None:
        """Take everything that a dead broker has stored, and let it join anew."""
        broker = self.brokers[number]
        assert broker.process is None, "it is dead"
        shutil.rmtree(broker.data_dir)
        broker.data_dir.mkdir()
        path = self._config(number)
        config = yaml.safe_load(path.read_text())
        config["meta_store"] |= {"seed_nodes": [], "join": True}
        path.write_text(yaml.safe_dump(config))

    def _config(self, number: int) -> Path:
        data = self.brokers[number].data_dir
        return data.with_name(f"{data.name}.yml")

    def node_id(self, number: int) -> int | None:
        """Return the number that a broker has given itself, once it has."""
        path = self.brokers[number].data_dir / "raft" / "node_id"
        text = path.read_text().strip() if path.exists() else ""
        return int(text) if text else None

    def raft_address(self, number: int) -> str:
        return self._cluster.raft_addresses[number]


@contextmanager
def ground(
    directory: Path, storage: Storage, *, command: Sequence[str] | None = None
) -> Iterator[Ground]:
    """Start a cluster and all it needs; everything ends with the block.

    This thread moves to a machine beside the brokers, with all that it starts from then on.
    """
    faults = possible_faults()
    danube = list(command or [str(Path(sys.executable).parent / "danube")])
    with ExitStack() as stack:
        machines = stack.enter_context(Machines(BROKERS + 1)) if "partition" in faults else None
        here = "127.0.0.1"
        if machines is not None:
            machines.enter(BROKERS)
            here = machines.address(BROKERS)
        places, disks = [], []
        for number in range(BROKERS):
            shim = None
            if "EIO" in faults:
                shim = DiskShim(directory / f"broker-{number}", directory / f"disk-{number}")
                disks.append(shim)
            places.append(
                Machine(
                    host=machines.address(number) if machines is not None else here,
                    command=[*(machines.on(number) if machines is not None else ()), *danube],
                    environment=shim.environment if shim is not None else {},
                )
            )
        settings = _storage(storage, directory, here, stack)
        cluster = ClusterProcesses(directory, BROKERS, machines=places, storage=settings)
        with cluster:
            yield Ground(cluster, machines, disks)


def _storage(storage: Storage, directory: Path, here: str, stack: ExitStack) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "mode": storage,
        "segments": _SEGMENTS,
        "wal": {"rotation": _ROTATION},
        "tail_cache_bytes_max": 256 * 1024,
    }
    if storage == "local":
        return {**settings, "durable": {}}
    store = directory / "store"
    store.mkdir()
    durable = structs.asdict(stack.enter_context(seaweedfs(store, here)))
    given = {name: value for name, value in durable.items() if value}
    return {**settings, "durable": msgspec.to_builtins(given)}
