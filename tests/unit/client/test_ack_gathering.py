"""Acks that nobody waits for: sent together, told about when they fail, never said too early."""

import asyncio
from collections.abc import Sequence

import pytest

from pydanube.client.ack_gathering import SENT_AT_ONCE, UNCONFIRMED_MAX, AckGatherer
from pydanube.errors import AccessDenied
from pydanube.runtime.clock import SystemClock


class Line:
    """What acks are sent over; it confirms when it is told to."""

    def __init__(self, linger_seconds: float = 0) -> None:
        self.sent: list[list[int]] = []
        self.confirm = asyncio.Event()
        self.refusal: Exception | None = None
        self.acks = AckGatherer("/default/t", self._send, SystemClock(), linger_seconds)

    async def _send(self, items: Sequence[int]) -> None:
        self.sent.append(list(items))
        await self.confirm.wait()
        if self.refusal is not None:
            raise self.refusal


async def test_acks_of_one_turn_go_together_and_nobody_waits() -> None:
    line = Line()
    for number in range(3):
        await line.acks.add([number], 1)
    assert line.sent == []
    waiting = asyncio.ensure_future(line.acks.flush())
    while not line.sent:
        await asyncio.sleep(0)
    assert line.sent == [[0, 1, 2]]
    assert not waiting.done()
    line.confirm.set()
    await waiting


async def test_who_wants_an_ack_to_be_durable_waits_for_it() -> None:
    line = Line(linger_seconds=60)
    await line.acks.add([0], 1)
    durable = asyncio.ensure_future(line.acks.add([1], 1, durable=True))
    while not line.sent:
        await asyncio.sleep(0)
    assert line.sent == [[0, 1]]
    assert not durable.done()
    line.confirm.set()
    await durable


async def test_many_acks_do_not_linger() -> None:
    line = Line(linger_seconds=60)
    for number in range(SENT_AT_ONCE):
        await line.acks.add([number], 1)
    await asyncio.sleep(0)
    assert [len(each) for each in line.sent] == [SENT_AT_ONCE]
    await line.acks.close()


async def test_without_room_an_ack_waits_for_what_was_sent_before() -> None:
    line = Line()
    await line.acks.add(range(UNCONFIRMED_MAX), UNCONFIRMED_MAX)
    waiting = asyncio.ensure_future(line.acks.add([-1], 1))
    while not line.sent:
        await asyncio.sleep(0)
    assert not waiting.done()
    line.confirm.set()
    await waiting
    await line.acks.flush()
    assert line.sent[-1] == [-1]


@pytest.mark.parametrize("call", ["add", "flush", "durable"])
async def test_why_an_ack_failed_is_told_once(call: str) -> None:
    line = Line()
    line.refusal = AccessDenied("no")
    line.confirm.set()
    if call == "durable":
        with pytest.raises(AccessDenied):
            await line.acks.add([0], 1, durable=True)
    else:
        await line.acks.add([0], 1)
        while line.acks._unconfirmed:
            await asyncio.sleep(0)
        with pytest.raises(AccessDenied):
            await (line.acks.add([1], 1) if call == "add" else line.acks.flush())
    line.refusal = None
    await line.acks.add([2], 1, durable=True)
