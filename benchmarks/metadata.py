"""What the metadata of ten thousand topics costs: rates, memory, snapshot and start.

Run with `python -m benchmarks.metadata`.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

from pydanube.metadata import keys
from pydanube.metadata.commands import Transact
from pydanube.metadata.local_store import LocalMetadataStore
from pydanube.metadata.state_machine import StateMachine
from pydanube.metadata.store import Operation, Put
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.system_files import SystemFiles
from pydanube.runtime.tasks import TaskScope

TOPICS = 10_000
IN_FLIGHT = 100
_Result = TypeVar("_Result")


def topic_operations(number: int) -> list[Operation]:
    """Return what creating a topic with one subscription writes: five keys."""
    topic = f"/default/orders-{number}"
    options = b'{"subscription_name":"audit","subscription_type":1,"consumer_name":"c-1"}'
    return [
        Put(keys.topic_record(topic), b'{"topic_id":%d,"partitions":null}' % number),
        Put(keys.topic_delivery(topic), b'"Reliable"'),
        Put(keys.namespace_topic(topic), b"null"),
        Put(keys.producer(topic, f"producer-{number}"), b'{"producer_id":%d}' % number),
        Put(keys.subscription(topic, "audit"), options),
    ]


def measure_metadata(topics: int = TOPICS) -> dict[str, float]:
    """Return the figures of a single node's metadata on this machine's temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_measure(directory, topics))


async def _measure(directory: str, topics: int) -> dict[str, float]:
    files, clock, tasks = SystemFiles(), SystemClock(), TaskScope(_report)
    memory_before = psutil.Process().memory_info().rss
    store = await LocalMetadataStore.open(files, clock, tasks, directory)
    figures: dict[str, float] = {"keys": 5 * topics}

    start = time.perf_counter()
    numbers = iter(range(topics))

    async def create_topics() -> None:
        for number in numbers:
            await store.transact([], topic_operations(number))

    await asyncio.gather(*(create_topics() for _ in range(IN_FLIGHT)))
    seconds = time.perf_counter() - start
    figures[f"transactions of 5 puts per second, {IN_FLIGHT} in flight"] = topics / seconds
    figures["keys put per second"] = 5 * topics / seconds

    start = time.perf_counter()
    for number in range(200):
        await store.put("/single", b"%d" % number)
    figures["single puts per second, one at a time"] = 200 / (time.perf_counter() - start)

    memory = psutil.Process().memory_info().rss - memory_before
    figures["memory taken, MiB"] = memory / 2**20
    seconds, entries = _timed(lambda: store.list(keys.topic_parts("/default/orders-42")))
    assert len(entries) == 3
    figures["list of one topic, us"] = seconds * 1e6
    await store.close()

    start = time.perf_counter()
    store = await LocalMetadataStore.open(files, clock, tasks, directory)
    figures["open again, ms"] = (time.perf_counter() - start) * 1e3
    assert len(store.list("/")) == 5 * topics + 1
    await store.close()
    await tasks.close()
    files.stop()
    return figures | _measure_snapshot(topics)


def _measure_snapshot(topics: int) -> dict[str, float]:
    machine = StateMachine()
    commands = [Transact((), tuple(topic_operations(number))) for number in range(topics)]
    seconds, _ = _timed(lambda: [machine.apply(command) for command in commands])
    figures = {"keys applied in memory per second": 5 * topics / seconds}
    seconds, snapshot = _timed(machine.snapshot)
    figures["snapshot, ms"] = seconds * 1e3
    figures["snapshot, MiB"] = len(snapshot) / 2**20
    seconds, _ = _timed(lambda: StateMachine().restore(snapshot))
    figures["restore, ms"] = seconds * 1e3
    return figures


def _timed(work: Callable[[], _Result]) -> tuple[float, _Result]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def _report(name: str, failure: BaseException) -> None:
    print(f"{name} failed: {failure}")


def print_metadata_figures() -> None:
    """Print one figure a line."""
    for name, figure in measure_metadata().items():
        print(f"{name:58} {figure:12,.1f}")


if __name__ == "__main__":
    print_metadata_figures()
