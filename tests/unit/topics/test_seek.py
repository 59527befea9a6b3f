"""Moving a subscription, forward and back, and what becomes of what is under way."""

import asyncio

import pytest

from pydanube.errors import DanubeError
from pydanube.model.ids import Offset
from pydanube.model.policies import SubscriptionType
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from tests.support.journals import instant_disk, rotating_at
from tests.support.served_topic import Done, ServedTopic, message, served

KINDS: list[SubscriptionType] = ["Exclusive", "Shared", "Failover", "KeyShared"]


async def publish(topic: ServedTopic, count: int) -> None:
    sent = [topic.send(message(b"%d" % n, routing_key=f"{n % 3}")) for n in range(count)]
    await asyncio.gather(*(answer.over for answer in sent))


@pytest.mark.parametrize("kind", KINDS)
async def test_everything_comes_again_from_there_on(kind: SubscriptionType) -> None:
    async with served(instant_disk()) as topic:
        receiver = topic.subscribe(kind)
        await publish(topic, 6)
        received: list[int] = []
        while len(received) < 6:
            some = await receiver.receive()
            received += some
            for offset in some:
                await receiver.ack(offset)
        assert receiver.subscription.cursor == 6
        await receiver.seek(2)
        assert receiver.subscription.cursor == 2
        again: list[int] = []
        while len(again) < 4:
            some = await receiver.receive()
            again += some
            for offset in some:
                await receiver.ack(offset)
        assert sorted(again) == [2, 3, 4, 5]
        assert set(receiver.attempts) == {1}
        await receiver.seek(6)
        assert await receiver.receive() == []


async def test_what_the_stream_has_not_sent_is_forgotten_and_its_room_given_back() -> None:
    async with served(instant_disk()) as topic:
        receiver = topic.subscribe(window=100, credit=10)
        outbox = receiver.stream.consumer.outbox
        await publish(topic, 30)
        taken = receiver.stream.take_nowait(1, 2**30)  # On its way when the seek comes.
        assert sum(delivery.count for delivery in taken) >= 1
        await receiver.seek(20)
        log = topic.topic.log
        assert log is not None
        for delivery in taken:
            for piece in await log.read(delivery.start, delivery.end):
                assert receiver.subscription.sendable(receiver.stream, delivery, piece) == ()
        assert await receiver.receive() == list(range(20, 30))
        # No room was lost, and none was made up: exactly as many as at first fit.
        for position in (0, 5, 0):
            await receiver.seek(position)
            assert outbox.message_count == 10
        assert await receiver.receive() == list(range(30))


async def test_an_ack_of_before_does_not_settle_what_has_not_come_again() -> None:
    async with served(instant_disk()) as topic:
        receiver = topic.subscribe(window=2)
        await publish(topic, 6)
        assert await receiver.receive() == [0, 1]
        await receiver.ack(0, 2)
        assert await receiver.receive() == [2, 3]
        await receiver.seek(0)
        await receiver.ack(2, 4)
        assert receiver.subscription.cursor == 0
        assert await receiver.receive() == [0, 1]
        await receiver.ack(0, 2)
        assert await receiver.receive() == [2, 3]


@pytest.mark.parametrize("file_bytes", [1, 10**6])
async def test_the_position_survives_a_restart_with_all_that_followed(file_bytes: int) -> None:
    disk = instant_disk()
    config = rotating_at(file_bytes)
    async with served(disk, config=config) as topic:
        receiver = topic.subscribe()
        await publish(topic, 10)
        await receiver.receive()
        await receiver.ack(0, 10)
        await receiver.seek(3)
        await receiver.receive()
        await receiver.ack(3)
        await receiver.ack(7)
    async with served(disk, config=config) as topic:
        receiver = topic.subscribe()
        assert receiver.subscription.cursor == 4
        assert await receiver.receive() == [4, 5, 6, 8, 9]


async def test_acks_of_the_same_tick_belong_to_the_new_position() -> None:
    disk = instant_disk()
    async with served(disk) as topic:
        receiver = topic.subscribe()
        await publish(topic, 5)
        await receiver.receive()
        before, moved, after = Done(), Done(), Done()
        receiver.subscription.ack(Offset(0), Offset(3), before)
        receiver.subscription.seek(Offset(1), moved)
        receiver.subscription.ack(Offset(1), Offset(2), after)
        await asyncio.gather(before.over, moved.over, after.over)
        assert receiver.subscription.cursor == 2
    async with served(disk) as topic:
        assert topic.subscribe().subscription.cursor == 2


def test_a_seek_that_was_answered_survives_every_crash() -> None:
    async def main(randomness: Randomness, stop_at: int) -> bool:
        disk = SimulatedDisk(randomness)
        config = rotating_at(1_500)
        topic = await ServedTopic.start(disk.mount(), config)
        receiver = topic.subscribe()
        await publish(topic, 12)
        await receiver.receive()
        await receiver.ack(0, 12)
        disk.crash_at(disk.operations + stop_at)
        answered, asked = [12], [12]
        try:
            for position in (4, 9, 2, 7):
                asked.append(position)
                await asyncio.wait_for(receiver.seek(position), 5)
                answered.append(position)
        except (DanubeError, OSError, TimeoutError):
            pass  # The disk is gone.
        crashed = disk.stopped
        disk.crash(randomness)
        await topic.abandon()
        topic = await ServedTopic.start(disk.mount(), config)
        cursor = topic.subscribe().subscription.cursor
        assert cursor in (answered[-1], asked[-1]), f"{cursor}, {asked}, {answered}"
        await topic.stop()
        return crashed

    crashes = [
        run_simulated(lambda r, n=number: main(r, n), f"{number} {seed}")
        for number in range(1, 12)
        for seed in range(3)
    ]
    assert sum(crashes) > len(crashes) / 2
