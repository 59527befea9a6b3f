"""Writes golden journals of the present format: python -m tests.compatibility.journal_golden.

Run once per format version and addition; a golden journal that exists is never written again.
"""

import asyncio
from pathlib import Path

from pydanube.model.batch import Batch
from pydanube.model.ids import JournalPosition, Offset, ProducerId, SubscriptionId, TopicId
from pydanube.model.message import Message
from pydanube.model.progress import ProgressChange
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.storage.frames import FrameScan
from pydanube.storage.journal.producers import ProducerStamp
from pydanube.storage.journal.quarantine import quarantine
from pydanube.storage.journal.records import Kind
from tests.support.journals import DIRECTORY, Broker, broker_on, instant_disk, rotating_at

GOLDEN = Path(__file__).parent / "golden"

RICH = Message(
    payload=b"rich",
    publish_time_ms=1_767_225_600_000,
    producer_name="producer",
    routing_key="key",
    attributes={"colour": "blue", "empty": ""},
    schema_id=2**63 + 1,
    schema_version=3,
)
PLAIN = Message(payload=b"", publish_time_ms=0, producer_name="p")
STAMP = ProducerStamp(
    producer_id=ProducerId(2**53 - 1),
    first_sequence=2**32,
    last_sequence=2**32 + 1,
    digest=2**64 - 1,
)
SESSION_STAMP = ProducerStamp(
    producer_id=ProducerId(2**64 - 1), first_sequence=0, last_sequence=0, session=True
)
LATER_STAMP = ProducerStamp(
    producer_id=ProducerId(2**64 - 1), first_sequence=2, last_sequence=9, session=True
)


async def write_golden() -> SimulatedDisk:
    """A journal with every kind of record: two files, an index, and a hole in the last file."""
    disk = instant_disk()
    config = rotating_at(4500)
    async with broker_on(disk, config, identity="GOLDEN/1") as broker:
        await broker.create_subscription(7, 1)
        await append(broker, 1, [RICH, PLAIN], stamp=STAMP)
        await append(broker, 2, [PLAIN])
        change = ProgressChange(settled=((1, 2), (4, 6)), attempts=((2, 3, 1), (6, 9, 4)))
        await broker.begin_settle(7, change)
        for _ in range(2):
            await append(broker, 1, [RICH])
        await append(broker, 1, [PLAIN, PLAIN, PLAIN])
        await append(broker, 2, [RICH])  # Will be lost.
        await append(broker, 1, [RICH])
        for _ in range(50):  # Until the first file has its index.
            await disk.exists(DIRECTORY)
    newest = [name for name in await disk.list_names(DIRECTORY) if name.endswith(".log")][-1]
    start = JournalPosition(int(newest.removesuffix(".log")[-20:]))
    scan = FrameScan(disk.contents(f"{DIRECTORY}/{newest}"), start)
    batches = [frame for frame in scan if frame.kind == Kind.BATCH]
    disk.flip_bit(f"{DIRECTORY}/{newest}", batches[-2].start + 100, 0)
    await quarantine(disk, DIRECTORY, SimulatedClock())
    return disk


async def write_golden_producers() -> SimulatedDisk:
    """Two files; the second one begins with what the first one's producers had sent."""
    disk = instant_disk()
    async with broker_on(disk, rotating_at(2000), identity="GOLDEN/1") as broker:
        await append(broker, 1, [RICH, PLAIN], stamp=STAMP)
        await append(broker, 1, [PLAIN], stamp=SESSION_STAMP)
        await append(broker, 2, [PLAIN], stamp=SESSION_STAMP)
        await append(broker, 1, [RICH])
        await append(broker, 2, [PLAIN], stamp=LATER_STAMP)
        for _ in range(50):  # Until the first file has its index.
            await disk.exists(DIRECTORY)
    return disk


async def write_golden_cluster() -> SimulatedDisk:
    """Two files; topics of a cluster that were taken over, are mirrored, or promised to another."""
    disk = instant_disk()
    async with broker_on(disk, rotating_at(1500), identity="GOLDEN/1") as broker:
        storage = broker.storage
        await append(broker, 1, [PLAIN])
        storage.let_go(TopicId(1), forget=False)
        await storage.take_over(TopicId(1), 8, Offset(40), [])
        await append(broker, 1, [RICH, PLAIN])
        await storage.mirrors.begin(TopicId(2), 6, 77, Offset(5))
        await storage.mirrors.fence(TopicId(3), 9)
        await append(broker, 1, [RICH])
        for _ in range(50):  # Until the first file has its index.
            await disk.exists(DIRECTORY)
    return disk


async def write_golden_padding() -> SimulatedDisk:
    """Two files, whose records lie where a disk takes them from memory."""
    disk = instant_disk()
    config = rotating_at(1_500, journal_direct_bytes_min=1)
    async with broker_on(disk, config, identity="GOLDEN/1") as broker:
        await append(broker, 1, [RICH, PLAIN])
        await append(broker, 2, [PLAIN])
        await append(broker, 1, [RICH])
        for _ in range(50):  # Until the first file has its index.
            await disk.exists(DIRECTORY)
    return disk


async def write_golden_notes() -> SimulatedDisk:
    """Two files; the second one begins with what the first one noted of the metadata."""
    disk = instant_disk()
    async with broker_on(disk, rotating_at(2_600), identity="GOLDEN/1") as broker:
        knowing = broker.storage.knowing
        knowing.follow(lambda: 12)
        for topic in (1024, 1025):
            knowing.topic(TopicId(topic), f"/default/topic-{topic}", b'{"id":%d}' % topic)
            await append(broker, topic, [RICH, PLAIN])
        subscription = SubscriptionId(2048)
        knowing.subscription(subscription, TopicId(1024), "readers", b'{"id":2048,"start":0}')
        await broker.create_subscription(2048, 1)
        broker.storage.drop_topic(TopicId(1025))
        for _ in range(2):
            await append(broker, 1024, [RICH])
        for _ in range(50):  # Until the first file has its index.
            await disk.exists(DIRECTORY)
    return disk


async def append(
    broker: Broker, topic: int, messages: list[Message], stamp: ProducerStamp | None = None
) -> None:
    log = broker.storage.topic(TopicId(topic))
    log.append(Batch.gather(messages), lambda error: None, stamp=stamp)
    await broker.storage.flush()


GOLDENS = {
    "journal-format-1": write_golden,
    "journal-format-1-producers": write_golden_producers,
    "journal-format-1-cluster": write_golden_cluster,
    "journal-format-1-padding": write_golden_padding,
    "journal-format-1-notes": write_golden_notes,
}


async def main() -> None:
    for directory, write in GOLDENS.items():
        target = GOLDEN / directory
        if target.exists():
            continue
        target.mkdir(parents=True)
        disk = await write()
        for name in await disk.list_names(DIRECTORY):
            if name.startswith("journal-"):
                (target / name).write_bytes(disk.contents(f"{DIRECTORY}/{name}"))
                print(target / name)


if __name__ == "__main__":
    asyncio.run(main())
