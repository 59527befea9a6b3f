"""The clients of a run, each a process of its own, and the orders they are given."""

import asyncio
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.chaos.history import Deed, Scribe, now
from tests.chaos.orders import Charge, Done, Order, Verb
from tests.chaos.schedule import OURS, STOCK

ROOT = Path(__file__).parents[2]
ORDER_SECONDS_MAX = 20.0
END_SECONDS_MAX = 20.0
CLIENTS = (*OURS, STOCK)


class Workload:
    """Starts the clients, and passes orders to all of them at once."""

    def __init__(
        self,
        urls: Sequence[str],
        topics: Sequence[str],
        directory: Path,
        scribe: Scribe,
        messages_a_second: float,
    ) -> None:
        self._charges = [
            Charge(name, list(urls), list(topics), str(directory / f"{name}.history"), rate)
            for name, rate in zip(CLIENTS, _rates(messages_a_second), strict=True)
        ]
        self._directory = directory
        self._scribe = scribe
        self._processes: list[asyncio.subprocess.Process] = []
        self._waiting: dict[tuple[int, int], asyncio.Future[None]] = {}
        self._numbers = itertools.count(1)
        self._listening: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for index, charge in enumerate(self._charges):
            with (self._directory / f"{charge.name}.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.chaos.client"),
                    msgspec.json.encode(charge).decode(),
                    cwd=ROOT,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                )
            self._processes.append(process)
            self._listening.append(asyncio.create_task(self._listen(index, charge.name, process)))

    async def tell(self, verb: Verb, topic: str = "", subscriptions: Sequence[str] = ()) -> None:
        """Give an order, and wait until it is carried out everywhere, though not for ever."""
        order = Order(next(self._numbers), verb, topic, list(subscriptions))
        line = msgspec.json.encode(order) + b"\n"
        waiting = []
        for index, process in enumerate(self._processes):
            if process.returncode is not None:
                continue
            assert process.stdin is not None
            done = self._waiting[index, order.number] = asyncio.get_running_loop().create_future()
            waiting.append(done)
            process.stdin.write(line)
        if waiting:
            await asyncio.wait(waiting, timeout=ORDER_SECONDS_MAX)

    async def stop(self) -> None:
        await self.tell("end")
        for process in self._processes:
            try:
                async with asyncio.timeout(END_SECONDS_MAX):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        await asyncio.gather(*self._listening, return_exceptions=True)

    async def _listen(self, index: int, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            done = self._waiting.pop((index, msgspec.json.decode(line, type=Done).number), None)
            if done is not None and not done.done():
                done.set_result(None)
        if code := await process.wait():
            at = now()
            self._scribe.write(
                Deed(at, at, "ok", "broken", f"client {name}", f"ended with {code}: {name}.log")
            )


def _rates(messages_a_second: float) -> tuple[float, float, float]:
    """Half of all messages come in batches."""
    return messages_a_second / 2, messages_a_second / 4, messages_a_second / 4
