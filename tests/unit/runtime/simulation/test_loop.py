import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import SimulatedDeadlock, SimulationLimit, run_simulated
from pydanube.runtime.simulation.network import SimulatedNetwork

Trace = list[tuple[float, str]]


async def busy_world(randomness: Randomness) -> Trace:
    """Several tasks that sleep, write files and talk, so that their order depends on the seed."""
    trace: Trace = []
    loop = asyncio.get_running_loop()
    disk = SimulatedDisk(randomness)
    network = SimulatedNetwork(randomness)
    await disk.make_directory("/data")

    async def write(name: str) -> None:
        file = await disk.create(f"/data/{name}")
        for number in range(5):
            await file.append_and_sync([b"x" * 100])
            trace.append((loop.time(), f"{name} wrote {number}"))
            await asyncio.sleep(randomness.uniform(0, 0.002))

    async def echo(connection) -> None:
        while data := await connection.read(10):
            await connection.write(data)

    async def talk(name: str) -> None:
        connection = await network.host(name).connect("server", 1)
        await connection.write(b"hello from " + name.encode())
        while True:
            trace.append((loop.time(), f"{name} heard {await connection.read(100)!r}"))

    await network.host("server").listen("", 1, echo)
    async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
        for name in ("a", "b", "c"):
            group.create_task(write(name))
        talkers = [asyncio.create_task(talk(name)) for name in ("d", "e")]
    await asyncio.sleep(1)
    for talker in talkers:
        talker.cancel()
    return trace


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    traces = [run_simulated(busy_world, seed) for seed in (1, 2, 3)]
    assert [run_simulated(busy_world, seed) for seed in (1, 2, 3)] == traces
    orders = [tuple(what for _, what in trace) for trace in traces]
    assert len(set(orders)) == 3


@pytest.mark.slow
def test_the_trace_of_a_seed_is_the_same_in_every_process() -> None:
    program = (
        "from tests.unit.runtime.simulation.test_loop import busy_world, run_simulated;"
        "print(run_simulated(busy_world, 1))"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[4],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert traces == {f"{run_simulated(busy_world, 1)}\n"}


def test_thousands_of_virtual_seconds_take_less_than_a_real_one() -> None:
    async def main(randomness: Randomness) -> float:
        async def tick(seconds: float) -> None:
            while True:
                await asyncio.sleep(seconds)

        tickers = [asyncio.create_task(tick(seconds)) for seconds in (0.7, 1.0, 1.3)]
        await asyncio.sleep(3_000)
        for ticker in tickers:
            ticker.cancel()
        return asyncio.get_running_loop().time()

    started = time.process_time()
    assert run_simulated(main, 1) == pytest.approx(3_000)
    assert time.process_time() - started < 1


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def main(randomness: Randomness) -> list[float]:
        fired: list[float] = []
        loop = asyncio.get_running_loop()
        for seconds in (5.0, 0.1, 100_000.0, 2.5, 0.1 + 1e-6):
            loop.call_later(seconds, fired.append, seconds)
        await asyncio.sleep(200_000)
        return fired

    assert run_simulated(main, 1) == [0.1, 0.1 + 1e-6, 2.5, 5.0, 100_000.0]


def test_a_deadlock_is_found_and_names_who_waits_where() -> None:
    async def main(randomness: Randomness) -> None:
        waiting = asyncio.create_task(asyncio.Event().wait(), name="waits for nothing")
        await waiting

    with pytest.raises(SimulatedDeadlock, match=r"waits for nothing at .*locks\.py") as caught:
        run_simulated(main, 42)
    assert any("seed 42" in note for note in caught.value.__notes__)


def test_endless_time_and_endless_steps_are_cut_short() -> None:
    async def sleeper(randomness: Randomness) -> None:
        while True:
            await asyncio.sleep(10)

    async def spinner(randomness: Randomness) -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(SimulationLimit, match=r"after 101?0\.0* virtual seconds"):
        run_simulated(sleeper, 1, seconds_max=1_000)
    with pytest.raises(SimulationLimit, match="1001 steps"):
        run_simulated(spinner, 1, steps_max=1_000)


def test_threads_are_refused() -> None:
    async def main(randomness: Randomness) -> None:
        await asyncio.to_thread(print)

    with pytest.raises(RuntimeError, match="no threads"):
        run_simulated(main, 1)


def test_an_error_in_a_callback_fails_the_run() -> None:
    async def main(randomness: Randomness) -> str:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)
        return "went on"

    with pytest.raises(ZeroDivisionError):
        run_simulated(main, 1)


def test_an_error_in_a_forgotten_task_fails_the_run() -> None:
    async def main(randomness: Randomness) -> None:
        async def fail() -> None:
            raise OSError("nobody looks")

        task = asyncio.create_task(fail())
        await asyncio.sleep(1)
        del task

    with pytest.raises(OSError, match="nobody looks"):
        run_simulated(main, 1)


def test_tasks_left_over_are_cancelled_and_may_take_their_time() -> None:
    ended: list[str] = []

    async def main(randomness: Randomness) -> str:
        async def linger() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(60)
                ended.append("tidied up")

        task = asyncio.create_task(linger())
        await asyncio.sleep(999)
        assert not task.done()
        return "done"

    assert run_simulated(main, 1, seconds_max=1_000) == "done"
    assert ended == ["tidied up"]


def test_the_clock_follows_virtual_time_and_may_be_wrong() -> None:
    async def main(randomness: Randomness) -> None:
        true, skewed, fast = SimulatedClock(), SimulatedClock(skew_ms=-500), SimulatedClock(rate=2)
        started = true.now_ms()
        assert skewed.now_ms() == started - 500
        for _ in range(1_000):
            await true.sleep(0.029)
        assert true.now_ms() == started + 29_000
        assert true.monotonic_ms() == 29_000
        assert fast.monotonic_ms() == 58_000
        await fast.sleep(2)
        assert true.monotonic_ms() == 30_000
        skewed.jump(-10_000)
        assert skewed.now_ms() == started + 30_000 - 10_500
        assert skewed.monotonic_ms() == 30_000
        fired: list[int] = []
        fast.call_later(4, lambda: fired.append(true.monotonic_ms()))
        true.call_later(1, lambda: fired.append(0)).cancel()
        await true.sleep(10)
        assert fired == [32_000]

    run_simulated(main, 1)
