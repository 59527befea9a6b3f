"""A consumer's name, its streams, and which connection speaks for it."""

import asyncio

import pytest

from pydanube.errors import Unavailable
from pydanube.model.ids import ConsumerId, Offset
from pydanube.subscriptions.consumer import Consumer, ConsumerStream, StreamEnded
from pydanube.subscriptions.outbox import Delivery


def consumer() -> Consumer:
    return Consumer(ConsumerId(1), "c", ())


def delivery(start: int, end: int) -> Delivery:
    return Delivery(Offset(start), Offset(end), 1)


async def test_a_stream_gets_what_comes_while_it_waits() -> None:
    member = consumer()
    stream = ConsumerStream(member)
    waiting = asyncio.ensure_future(stream.next(10, 1 << 20))
    await asyncio.sleep(0)
    member.outbox.put(delivery(0, 2))
    assert await waiting == [delivery(0, 2)]


async def test_a_stream_takes_as_many_messages_as_it_asks_for() -> None:
    member = consumer()
    for start in range(0, 10, 2):
        member.outbox.put(delivery(start, start + 2))
    stream = ConsumerStream(member)
    assert await stream.next(3, 1 << 20) == [delivery(0, 3)]
    assert member.outbox.message_count == 7
    assert await stream.next(100, 1 << 20) == [delivery(3, 10)]


async def test_only_what_follows_in_every_respect_is_taken_as_one() -> None:
    member = consumer()
    deliveries = [delivery(0, 2), delivery(2, 4), delivery(5, 6), Delivery(Offset(6), Offset(7), 2)]
    for each in deliveries:
        member.outbox.put(each)
    assert await ConsumerStream(member).next(100, 1 << 20) == [delivery(0, 4), *deliveries[2:]]


async def test_what_was_taken_is_unsent_until_it_is_said_to_be_sent() -> None:
    member = consumer()
    member.outbox.put(delivery(0, 10))
    await ConsumerStream(member).next(4, 1 << 20)
    assert member.outbox.unsent() == ((0, 4), (4, 10))
    member.outbox.sent(Offset(0), Offset(3))
    assert member.outbox.unsent() == ((3, 4), (4, 10))
    member.outbox.clear()
    assert member.outbox.unsent() == ()


@pytest.mark.parametrize("error", [None, Unavailable("moved")])
async def test_a_stream_ends_as_it_is_told(error: Unavailable | None) -> None:
    stream = ConsumerStream(consumer())
    waiting = asyncio.ensure_future(stream.next(10, 1 << 20))
    await asyncio.sleep(0)
    stream.end(error)
    with pytest.raises(StreamEnded) as ended:
        await waiting
    assert ended.value.error is error


def test_the_connection_that_came_last_speaks_for_the_name() -> None:
    member = consumer()
    member.taken_by("first")
    assert not member.is_superseded("first")
    member.taken_by("second")
    assert member.is_superseded("first")
    assert not member.is_superseded("second")
    member.taken_by("first")
    assert member.is_superseded("second")
    assert not member.is_superseded("first")


def test_a_health_check_hears_of_a_close_once() -> None:
    member = consumer()
    member.close_due = True
    assert [member.take_close(), member.take_close()] == [True, False]
