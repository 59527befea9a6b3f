"""Several broker processes on one machine that form a cluster, looked after until told to stop."""

import asyncio
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import yaml
from msgspec import Struct

from pydanube.errors import Unavailable
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.process import StopSignals
from pydanube.runtime.tasks import TaskScope

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.2
_LOG_CHARACTERS = 2_000
_FIRST_ADMIN, _FIRST_RAFT, _FIRST_METRICS, _FIRST_CLIENT = 50051, 7650, 9040, 6650


class LocalPlan(Struct, frozen=True, kw_only=True):
    """What the cluster shall be."""

    directory: str
    brokers: int = 3
    first_port: int = _FIRST_CLIENT
    replicas: int | None = None
    is_of_the_moment: bool = False
    """Whether the directory vanishes, and the logs with it, when the cluster ends."""

    def ports(self, number: int) -> dict[str, int]:
        """Return the ports of one broker; all ranges move with the first client port."""
        shift = self.first_port - _FIRST_CLIENT + number
        return {
            "client": _FIRST_CLIENT + shift,
            "admin": _FIRST_ADMIN + shift,
            "raft": _FIRST_RAFT + shift,
            "prometheus": _FIRST_METRICS + shift,
        }

    def config(self, number: int) -> dict[str, object]:
        """Return the configuration of one broker."""
        seeds = [f"127.0.0.1:{self.ports(each)['raft']}" for each in range(self.brokers)]
        own = f"{self.directory}/broker-{number}"
        mirrors = {} if self.replicas is None else {"replicas": self.replicas}
        return {
            "cluster_name": "LOCAL",
            "broker": {"host": "127.0.0.1", "ports": self.ports(number)},
            "meta_store": {"data_dir": f"{own}/raft", "seed_nodes": seeds},
            "bootstrap_namespaces": ["default"],
            "auth": {"mode": "none"},
            "mirrors": mirrors,
            "storage": {
                "mode": "shared_fs",
                "local_wal_root": f"{own}/wal",
                "durable": {"root": f"{self.directory}/segments"},
            },
            "policies": {},
        }


class LocalCluster:
    """Starts the brokers, starts again those that end, and stops all of them in the end."""

    def __init__(self, plan: LocalPlan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._clock = SystemClock()
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    async def run(self, seconds: float | None) -> None:
        """Run until a signal, or for so long."""
        tasks = TaskScope(self._failed)
        with StopSignals() as signals:
            try:
                if await signals.unless_asked(self._begin()):
                    tasks.start(self._look_after(), "brokers that end")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await signals.wait()
            finally:
                await tasks.close()
                await self._stop()

    def _failed(self, name: str, error: BaseException) -> None:
        self._say(f"{name} are not started again: {error}")

    async def _begin(self) -> bool:
        for number in range(self._plan.brokers):
            await self._start(number)
        await self._until_ready()
        self._tell()
        return True

    async def _start(self, number: int) -> None:
        log_path = self._log(number)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        config = log_path.parent / "danube_broker.yml"
        config.write_text(yaml.safe_dump(self._plan.config(number)), encoding="utf-8")
        with log_path.open("ab") as log:
            self._processes[number] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                "from pydanube.cli.main import danube; danube()",
                "broker",
                "--mode",
                "cluster",
                "--config-file",
                str(config),
                stdout=log,
                stderr=log,
            )

    async def _until_ready(self) -> None:
        deadline = self._clock.monotonic_seconds() + READY_SECONDS_MAX
        for number, process in self._processes.items():
            while not await asyncio.to_thread(self._is_ready, number):
                if process.returncode is not None:
                    raise Unavailable(f"broker {number} did not start; {self._said(number)}")
                if self._clock.monotonic_seconds() > deadline:
                    raise Unavailable(
                        f"broker {number} is not ready after {READY_SECONDS_MAX:g} s; "
                        f"{self._said(number)}"
                    )
                await self._clock.sleep(_LOOK_SECONDS)

    def _log(self, number: int) -> Path:
        return Path(self._plan.directory) / f"broker-{number}" / "broker.log"

    def _said(self, number: int) -> str:
        """Return the end of a broker's log, and where all of it can be read, if anywhere."""
        said = self._log(number).read_text(errors="replace")[-_LOG_CHARACTERS:].strip()
        where = f"all of it is in {self._log(number)}"
        if self._plan.is_of_the_moment:
            where = "give --data-dir to keep all of it"
        return f"its log ends with the lines below ({where}):\n{said}"

    def _is_ready(self, number: int) -> bool:
        url = f"http://127.0.0.1:{self._plan.ports(number)['prometheus']}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _tell(self) -> None:
        clients = [
            f"http://127.0.0.1:{self._plan.ports(number)['client']}"
            for number in range(self._plan.brokers)
        ]
        for number, url in enumerate(clients):
            ports = self._plan.ports(number)
            self._say(
                f"broker {number}: {url}  admin http://127.0.0.1:{ports['admin']}  "
                f"pid {self._processes[number].pid}"
            )
        admin = f"http://127.0.0.1:{self._plan.ports(0)['admin']}"
        self._say(f'connect("{",".join(clients)}")')
        self._say(f"danube brokers list --endpoint {admin}")

    async def _look_after(self) -> None:
        while True:
            await self._clock.sleep(_LOOK_SECONDS)
            for number, process in list(self._processes.items()):
                if process.returncode is not None:
                    self._say(
                        f"broker {number} ended with {process.returncode}; starting it again "
                        f"(its log: {self._log(number)})"
                    )
                    await self._start(number)
                    self._say(f"broker {number}: pid {self._processes[number].pid}")

    async def _stop(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                async with asyncio.timeout(STOP_SECONDS_MAX):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
