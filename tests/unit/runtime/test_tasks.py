import asyncio

import pytest

from pydanube.runtime.tasks import TaskScope, carry_through, wait_out


async def test_waiting_out_returns_the_result_or_raises_the_error() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.set_result(7)
    assert await wait_out(future) == 7
    failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    failed.set_exception(OSError("broken"))
    with pytest.raises(OSError, match="broken"):
        await wait_out(failed)


async def test_a_cancelled_caller_is_cancelled_after_the_future_is_done() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(wait_out(future))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    future.set_result(1)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_scope_reports_failures_and_not_cancellations() -> None:
    failures: list[tuple[str, str]] = []
    scope = TaskScope(lambda name, failure: failures.append((name, str(failure))))

    async def fail() -> None:
        raise OSError("broken")

    scope.start(asyncio.Event().wait(), "waits")
    scope.start(fail(), "fails")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert failures == [("fails", "broken")]
    await scope.close()
    assert failures == [("fails", "broken")]


async def test_a_scope_ends_its_tasks_in_the_order_of_starting() -> None:
    scope = TaskScope(lambda name, failure: None)
    ended: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    for number in range(50):
        scope.start(wait(number), f"{number}")
    await asyncio.sleep(0)
    await scope.close()
    assert ended == list(range(50))


async def test_a_closed_scope_starts_nothing() -> None:
    scope = TaskScope(lambda name, failure: None)
    await scope.close()

    async def work() -> None:
        raise AssertionError("must not run")

    scope.start(work(), "late")
    await asyncio.sleep(0)


async def test_work_that_is_carried_through_ends_although_its_caller_was_cancelled() -> None:
    done: list[str] = []
    go_on = asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        done.append("all of it")

    caller = asyncio.create_task(carry_through(work()))
    await asyncio.sleep(0)
    caller.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done == ["all of it"], "the caller has waited for it"
