"""Real `danube broker` processes that form a cluster, on loopback or on machines of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from tests.support.broker_process import BrokerProcess, free_ports

FAST = {"lease_ms": 500, "heartbeat_ms": 40, "election_ms": 200}
"""Times under which a dead broker is noticed within a second."""


@dataclass(frozen=True)
class Machine:
    """Where one broker runs, and how it is started there."""

    host: str = "127.0.0.1"
    command: Sequence[str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


class ClusterProcesses:
    """Brokers with a directory each, and one for the segments of all.

    `storage` is what they are told of it beside that, or instead of it.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        times: dict[str, int] | None = None,
        replicas: int | None = None,
        etcd_url: str | None = None,
        more: dict[str, Any] | None = None,
        storage: dict[str, Any] | None = None,
        machines: Sequence[Machine] | None = None,
    ) -> None:
        ports = free_ports(count)
        machines = machines or [Machine()] * count
        self.raft_addresses = [
            f"{machine.host}:{port}" for machine, port in zip(machines, ports, strict=True)
        ]
        metadata: dict[str, Any] = {"seed_nodes": self.raft_addresses}
        if etcd_url is not None:
            metadata = {"backend": "etcd", "etcd": {"endpoints": [etcd_url]}}
        self.brokers = []
        for number, (machine, port) in enumerate(zip(machines, ports, strict=True)):
            data = directory / f"broker-{number}"
            data.mkdir(parents=True, exist_ok=True)
            config = {
                "cluster_name": "E2E",
                "broker": {"host": machine.host, "ports": {"raft": port}},
                "meta_store": {"data_dir": str(data / "raft"), **metadata},
                "bootstrap_namespaces": ["default"],
                "auth": {"mode": "none"},
                "cluster": times or {},
                "mirrors": {} if replicas is None else {"replicas": replicas},
                "storage": {
                    "mode": "shared_fs",
                    "local_wal_root": str(data / "wal"),
                    "durable": {"root": str(directory / "segments")},
                    **(storage or {}),
                },
                "policies": {},
                **(more or {}),
            }
            path = directory / f"broker-{number}.yml"
            path.write_text(yaml.safe_dump(config))
            flags = ["--mode", "cluster", "--config-file", str(path)]
            flags += [] if machine.host == "127.0.0.1" else ["--insecure"]
            broker = BrokerProcess(data, *flags, command=machine.command, host=machine.host)
            broker.environment |= machine.environment
            self.brokers.append(broker)

    @property
    def urls(self) -> list[str]:
        return [broker.url for broker in self.brokers]

    def start(self) -> None:
        for broker in self.brokers:
            broker.start(wait=False)
        for broker in self.brokers:
            broker.wait_ready()

    def logs(self) -> str:
        return "\n".join(
            f"broker {number}:\n{broker.log_tail()}" for number, broker in enumerate(self.brokers)
        )

    def __enter__(self) -> "ClusterProcesses":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for broker in self.brokers:
            if broker.process is not None:  # A test that failed may have killed it.
                broker.kill()
