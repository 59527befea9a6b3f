"""One side of a job, a publisher or a consumer, in a process of its own.

    python -m pydanube.bench.worker

Reads one line of JSON, prepares, says it is ready, waits for a line, and prints what it measured.
Latencies count from the moment a message was due, so that a stall is not hidden by a client that
waits for it. Both sides read the same monotonic clock of the machine.
"""

import asyncio
import gc
import os
import sys
from struct import Struct as Layout

import msgspec
import psutil
from msgspec import Struct

from pydanube.bench.driver import Link, open_link
from pydanube.bench.jobs import job_named
from pydanube.bench.results import Latencies, latencies_of
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.process import run
from pydanube.runtime.tasks import TaskScope

_STAMP = Layout("<d")
_LAST = b"that was all"
"""What the last message of a publisher says, behind the place of the stamp; it does not count."""
_CHECK_EVERY = 64
SILENCE_SECONDS_MAX = 60.0


class Assignment(Struct, frozen=True, kw_only=True):
    """What a worker shall do."""

    link: str
    url: str
    topic: str
    job: str
    payload_bytes: int
    seconds: float
    publishes: bool


class Outcome(Struct, frozen=True, kw_only=True):
    """What a worker measured."""

    messages: int
    began: float
    ended: float
    cpu_seconds: float
    latencies: Latencies | None = None


class Deadline:
    """Tells when the time is over; looks at the clock only now and then."""

    def __init__(self, seconds: float) -> None:
        self._clock = SystemClock()
        self._end = self._clock.monotonic_seconds() + seconds
        self._calls = 0

    def __call__(self) -> bool:
        """Tell whether it is over."""
        self._calls += 1
        if self._calls % _CHECK_EVERY:
            return False
        return self._clock.monotonic_seconds() >= self._end


async def work(assignment: Assignment) -> Outcome:
    """Carry one side of a job out."""
    link = open_link(assignment.link, assignment.url, assignment.topic)
    try:
        await link.prepare(consumes=not assignment.publishes)
        _say("ready")
        if not await _next_line():
            raise SystemExit("the process that started this worker has ended")
        gc.collect()
        gc.freeze()
        side = _publish if assignment.publishes else _consume
        return await side(link, assignment)
    finally:
        await link.close()


async def _publish(link: Link, assignment: Assignment) -> Outcome:
    job = job_named(assignment.job)
    clock = SystemClock()
    payload = os.urandom(assignment.payload_bytes)
    latencies: list[float] = []
    began, cpu = clock.monotonic_seconds(), _cpu_seconds()
    stop = Deadline(assignment.seconds)
    if job.batch_rows is not None:
        sent = await link.publish_batches([payload] * job.batch_rows, job.window, stop)
    elif job.rate is not None:
        latencies = await _publish_paced(link, job.rate, assignment)
        sent = len(latencies)
    elif job.window == 1:
        latencies = await _publish_one_by_one(link, payload, began + assignment.seconds)
        sent = len(latencies)
    else:
        sent = await link.publish(payload, job.window, stop)
    outcome = Outcome(
        messages=sent,
        began=began,
        ended=clock.monotonic_seconds(),
        cpu_seconds=_cpu_seconds() - cpu,
        latencies=latencies_of(latencies),
    )
    await link.send(bytes(_STAMP.size) + _LAST)
    return outcome


async def _publish_one_by_one(link: Link, payload: bytes, end: float) -> list[float]:
    clock = SystemClock()
    latencies: list[float] = []
    while (due := clock.monotonic_seconds()) < end:
        await link.send(payload)
        latencies.append(clock.monotonic_seconds() - due)
    return latencies


async def _publish_paced(link: Link, rate: int, assignment: Assignment) -> list[float]:
    """Send each message when it is due, whatever became of those before."""
    clock = SystemClock()
    latencies: list[float] = []
    failures: list[BaseException] = []
    scope = TaskScope(lambda _, error: failures.append(error))
    over = asyncio.Event()
    count = max(1, int(rate * assignment.seconds))
    padding = os.urandom(assignment.payload_bytes - _STAMP.size)

    async def send_one(due: float) -> None:
        await link.send(_STAMP.pack(due) + padding)
        latencies.append(clock.monotonic_seconds() - due)
        if len(latencies) == count:
            over.set()

    try:
        began = clock.monotonic_seconds()
        for number in range(count):
            due = began + number / rate
            early = due - clock.monotonic_seconds()
            if early > 0:
                await clock.sleep(early)
            scope.start(send_one(due), "send")
        async with asyncio.timeout(SILENCE_SECONDS_MAX):
            await over.wait()
    finally:
        await scope.close()
        if failures:
            raise failures[0]
    return latencies


async def _consume(link: Link, assignment: Assignment) -> Outcome:
    clock = SystemClock()
    paced = job_named(assignment.job).rate is not None
    latencies: list[float] = []
    received = 0
    began, cpu = clock.monotonic_seconds(), _cpu_seconds()

    def handle(payloads: list[bytes]) -> bool:
        nonlocal received
        is_last = payloads[-1][_STAMP.size :] == _LAST
        if is_last:
            payloads = payloads[:-1]
        received += len(payloads)
        if paced:
            now = clock.monotonic_seconds()
            latencies.extend([now - _STAMP.unpack_from(payload)[0] for payload in payloads])
        return not is_last

    await link.consume(handle)
    return Outcome(
        messages=received,
        began=began,
        ended=clock.monotonic_seconds(),
        cpu_seconds=_cpu_seconds() - cpu,
        latencies=latencies_of(latencies),
    )


async def _next_line() -> str:
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _cpu_seconds() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Read the assignment, do it, and print the outcome."""
    assignment = msgspec.json.decode(sys.stdin.readline(), type=Assignment)
    outcome = run(work(assignment))
    _say(msgspec.json.encode(outcome).decode())


if __name__ == "__main__":
    main()
