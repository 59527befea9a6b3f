import asyncio

import pytest

from pydanube.runtime.watermark import Watermark


async def test_a_value_reached_already_is_not_waited_for() -> None:
    assert await Watermark(5).wait_for(5) == 5


async def test_waiters_wake_when_their_value_is_reached_and_not_before() -> None:
    mark = Watermark()
    woken: list[int] = []

    async def wait(value: int) -> None:
        await mark.wait_for(value)
        woken.append(value)

    tasks = [asyncio.create_task(wait(value)) for value in (3, 1, 2, 2, 9)]
    await asyncio.sleep(0)
    mark.advance_to(2)
    await asyncio.sleep(0)
    assert woken == [1, 2, 2]
    mark.advance_to(1)
    assert mark.value == 2
    mark.advance_to(10)
    await asyncio.gather(*tasks)
    assert woken == [1, 2, 2, 3, 9]


async def test_a_waiter_learns_how_far_it_went() -> None:
    mark = Watermark()
    waiting = asyncio.create_task(mark.wait_for(3))
    await asyncio.sleep(0)
    mark.advance_to(8)
    assert await waiting == 8


async def test_closing_tells_those_who_wait_now_and_later() -> None:
    mark = Watermark(4)
    waiting = [asyncio.create_task(mark.wait_for(value)) for value in (5, 6)]
    await asyncio.sleep(0)
    mark.close(OSError("the disk is broken"))
    mark.close(ValueError("too late"))
    for task in waiting:
        with pytest.raises(OSError, match="the disk is broken"):
            await task
    with pytest.raises(OSError, match="the disk is broken"):
        await mark.wait_for(5)
    assert await mark.wait_for(4) == 4


async def test_a_closed_watermark_stays_where_it_is() -> None:
    mark = Watermark(4)
    mark.close(OSError())
    mark.advance_to(9)
    assert mark.value == 4


async def test_a_cancelled_waiter_harms_nobody() -> None:
    mark = Watermark()
    tasks = [asyncio.create_task(mark.wait_for(1)) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    mark.advance_to(1)
    tasks[2].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [
        False,
        True,
        True,
        False,
    ]
    assert await mark.wait_for(1) == 1


async def test_waiters_that_give_up_do_not_pile_up() -> None:
    mark = Watermark()
    patient = asyncio.create_task(mark.wait_for(1_000))
    for value in range(500):
        impatient = asyncio.create_task(mark.wait_for(value + 1))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
    assert len(mark._waiters) < 10
    mark.advance_to(1_000)
    assert await patient == 1_000


async def test_a_waiter_cancelled_in_the_tick_of_the_closing_leaves_no_complaint() -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: complaints.append(context)
    )
    mark = Watermark()
    task = asyncio.create_task(mark.wait_for(1))
    await asyncio.sleep(0)
    mark.close(OSError())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    del task, mark
    assert complaints == []
