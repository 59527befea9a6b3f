"""Redis Streams through redis-py."""

import subprocess
from pathlib import Path

import redis
import redis.asyncio
import redis.utils

from benchmarks.peers.programs import absence_of, find_program
from pydanube.bench.driver import Handle, Stop
from pydanube.bench.results import SystemNotes
from pydanube.bench.servers import ServerProcess, free_ports
from pydanube.errors import NotSupported

GROUP = "bench"
FETCH = 256
FSYNC = {"always": "before reply", "everysec": "every second, after the reply"}


class RedisSystem:
    link = "benchmarks.peers.redis_streams:RedisLink"
    jobs = ("publish", "backlog", "end_to_end", "one_in_flight", "latency")

    def __init__(self, appendfsync: str) -> None:
        self.name = f"redis-{appendfsync}"
        self._appendfsync = appendfsync
        self.notes = SystemNotes(
            name=self.name,
            title=self._title(),
            fsync=FSYNC[appendfsync],
            batching={
                "publish": "pipelines of the window's size",
                "backlog": f"XREADGROUP and XACK of {FETCH}",
                "end_to_end": f"pipelines of the window's size; XREADGROUP and XACK of {FETCH}",
                "latency": f"redis.asyncio, one by one; XREADGROUP and XACK of up to {FETCH}",
            },
        )

    def _title(self) -> str:
        program = find_program("redis-server")
        said = ""
        if program is not None:
            done = subprocess.run([program, "--version"], capture_output=True, text=True)
            said = done.stdout.split("v=")[-1].split()[0]
        parser = "hiredis" if redis.utils.HIREDIS_AVAILABLE else "its Python parser"
        return (
            f"Redis {said}, appendonly, appendfsync {self._appendfsync}; "
            f"redis-py {redis.__version__} with {parser}"
        )

    def absence(self) -> str | None:
        return absence_of(self.name, "redis-server", "Debian: redis-server")

    def start(self, directory: Path) -> ServerProcess:
        (port,) = free_ports(1)
        program = find_program("redis-server")
        assert program is not None
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
        command += ["--appendonly", "yes", "--appendfsync", self._appendfsync, "--save", ""]
        server = ServerProcess(command, f"redis://127.0.0.1:{port}", directory / "redis.log")
        server.wait_for_port(port)
        return server


class RedisLink:
    """The blocking client where that is enough, since it costs less than the one for asyncio."""

    def __init__(self, url: str, topic: str) -> None:
        self._redis = redis.Redis.from_url(url)
        self._overlapping = redis.asyncio.Redis.from_url(url, max_connections=256)
        self._topic = topic

    async def prepare(self, *, consumes: bool) -> None:
        self._redis.ping()
        if consumes:
            self._redis.xgroup_create(self._topic, GROUP, id="0", mkstream=True)

    async def publish(self, payload: bytes, window: int, stop: Stop) -> int:
        sent = 0
        pipeline = self._redis.pipeline(transaction=False)
        fields = {b"p": payload}
        over = False
        while not over:
            count = 0
            while count < window and not over:
                pipeline.xadd(self._topic, fields)
                count += 1
                over = stop()
            pipeline.execute()
            sent += count
        return sent

    async def publish_batches(self, payloads: list[bytes], window: int, stop: Stop) -> int:
        raise NotSupported("Redis has no batches but pipelines")

    async def send(self, payload: bytes) -> None:
        await self._overlapping.xadd(self._topic, {b"p": payload})

    async def consume(self, handle: Handle) -> None:
        goes_on = True
        while goes_on:
            found = self._redis.xreadgroup(
                GROUP, "one", {self._topic: ">"}, count=FETCH, block=60_000
            )
            entries = found[0][1] if isinstance(found, list) else next(iter(found.values()))[0]
            goes_on = handle([fields[b"p"] for _, fields in entries])
            self._redis.xack(self._topic, GROUP, *(entry for entry, _ in entries))

    async def close(self) -> None:
        self._redis.close()
        await self._overlapping.aclose()
