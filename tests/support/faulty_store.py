"""An object store in memory that fails as a seed decides, and survives the brokers that use it."""

import asyncio
from collections.abc import Callable
from typing import Literal

from typing_extensions import override

from pydanube.runtime.randomness import Randomness
from pydanube.storage.errors import ObjectMissing, ObjectTooShort, StoreFailed, StoreProblem
from pydanube.storage.segments.object_store import PROBE_DIRECTORY, ObjectStore

Fault = Literal["refused", "late", "lost answer", "partial", "slow"]
FAULTS: tuple[Fault, ...] = ("refused", "late", "lost answer", "partial", "slow")


class Cloud:
    """What is stored, and which faults befall its callers."""

    def __init__(self, randomness: Randomness) -> None:
        self.objects: dict[str, bytes] = {}
        self.ever_written: dict[str, bytes] = {}
        self.randomness = randomness
        self.fault_percent = 0
        self.calls = 0
        """All but reads: those cannot leave anything half done."""
        self.faults: dict[str, int] = {}
        self._old_names: list[str] = []
        self._stop_at: tuple[int, bool] | None = None
        self.on_stop: Callable[[], None] = lambda: None

    def stop_at(self, call: int, *, after: bool) -> None:
        """Stop the caller's machine before, or right after, the call of that number."""
        self._stop_at = (call, after)

    def set_name(self, key: str, data: bytes | None) -> None:
        self._old_names = sorted(self.objects)
        if data is None:
            self.objects.pop(key, None)
        else:
            before = self.ever_written.setdefault(key, data)
            whole = before.startswith(data) or data.startswith(before)
            assert whole or key.startswith(PROBE_DIRECTORY), f"{key} has two contents"
            self.objects[key] = data

    def names(self, directory: str) -> list[str]:
        stale = self.fault_percent and self.randomness.below(2)
        names = self._old_names if stale else sorted(self.objects)
        return [n for n in names if n.startswith(directory) and "/" not in n[len(directory) :]]

    def draw_fault(self) -> Fault | None:
        if self.randomness.below(100) >= self.fault_percent:
            return None
        fault = FAULTS[self.randomness.below(len(FAULTS))]
        self.faults[fault] = self.faults.get(fault, 0) + 1
        return fault

    def stops_now(self, *, after: bool) -> bool:
        if self._stop_at != (self.calls, after):
            return False
        self._stop_at = None
        self.on_stop()
        return True


class FaultyStore(ObjectStore):
    """One broker's connection to the cloud; it dies with the broker."""

    provider = "fake"

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._dead = False

    @property
    @override
    def description(self) -> str:
        return "the faulty store"

    @override
    async def put_if_absent(self, key: str, data: bytes) -> bool:
        def write() -> bool:
            if key in self._cloud.objects:
                return False
            self._cloud.set_name(key, data)
            return True

        return await self._change(write, lambda: self._write_partly(key, data))

    @override
    async def put(self, key: str, data: bytes) -> None:
        await self._change(
            lambda: self._cloud.set_name(key, data), lambda: self._write_partly(key, data)
        )

    def _write_partly(self, key: str, data: bytes) -> None:
        if key not in self._cloud.objects:
            self._cloud.set_name(key, data[: self._cloud.randomness.below(len(data))])

    @override
    async def read(self, key: str, position: int, length: int) -> bytes:
        await self._answer(counted=False)
        data = self._cloud.objects.get(key)
        if data is None:
            raise ObjectMissing(self.description, key)
        if position + length > len(data):
            raise ObjectTooShort(self.description, key, position, length)
        return data[position : position + length]

    @override
    async def size(self, key: str) -> int | None:
        await self._answer()
        data = self._cloud.objects.get(key)
        return None if data is None else len(data)

    @override
    async def list(self, directory: str) -> list[str]:
        await self._answer()
        return self._cloud.names(directory)

    @override
    async def delete(self, key: str) -> None:
        def remove() -> None:
            self._cloud.set_name(key, None)

        await self._change(remove, remove)

    @override
    async def close(self) -> None:
        self._dead = True

    def die(self) -> None:
        """Let the broker's machine stop: nothing of it gets through any more."""
        self._dead = True

    async def _answer(self, *, counted: bool = True) -> None:
        """Let a call that changes nothing go well, or fail."""
        fault = await self._begin(counted=counted)
        if fault is not None and fault != "slow":
            raise self._failed(StoreProblem.THROTTLED)
        await self._end()

    async def _change(self, apply, apply_partly):
        fault = await self._begin()
        match fault:
            case "refused":
                raise self._failed(StoreProblem.THROTTLED)
            case "late":
                # The caller gives up; the request arrives all the same, some time.
                delay = self._cloud.randomness.uniform(0.1, 20.0)
                asyncio.get_running_loop().call_later(delay, apply)
                raise self._failed(StoreProblem.TIMEOUT)
            case "lost answer":
                apply()
                raise self._failed(StoreProblem.TIMEOUT)
            case "partial":
                apply_partly()
                raise self._failed(StoreProblem.OTHER)
            case _:
                result = apply()
                await self._end()
                return result

    async def _begin(self, *, counted: bool = True) -> Fault | None:
        cloud = self._cloud
        if self._dead:
            raise self._failed(StoreProblem.UNREACHABLE)
        fault = cloud.draw_fault()
        await asyncio.sleep(cloud.randomness.uniform(0.001, 30.0 if fault == "slow" else 0.01))
        cloud.calls += counted
        if self._dead or cloud.stops_now(after=False):
            await self._no_answer()
        return fault

    async def _end(self) -> None:
        if self._dead or self._cloud.stops_now(after=True):
            await self._no_answer()

    async def _no_answer(self) -> None:
        """Leave a caller alone whose machine has stopped."""
        self._dead = True
        await asyncio.get_running_loop().create_future()

    def _failed(self, problem: StoreProblem) -> StoreFailed:
        return StoreFailed(self.description, problem, "a fault was drawn")
