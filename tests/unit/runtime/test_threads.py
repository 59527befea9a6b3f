import asyncio
import threading
import weakref
from functools import partial

import pytest

from pydanube.runtime.threads import WorkerThreads


async def test_one_thread_carries_out_jobs_in_order_also_when_nobody_waits() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: complaints.append(context)
    )
    worker = WorkerThreads("one", 1)
    begin = threading.Event()
    done: list[int] = []
    first = worker.submit(begin.wait)
    rest = [worker.submit(lambda number=number: done.append(number)) for number in range(50)]
    for future in rest[::2]:
        future.cancel()
    begin.set()
    await first
    await worker.run(lambda: None)
    assert done == list(range(50))
    assert complaints == []
    worker.stop()


async def test_an_error_of_any_kind_reaches_the_waiter_and_the_thread_lives_on() -> None:
    worker = WorkerThreads("one", 1)

    def leave() -> None:
        raise SystemError("strange")

    with pytest.raises(SystemError, match="strange"):
        await worker.run(leave)
    assert await worker.run(lambda: 7) == 7
    worker.stop()


async def test_a_cancelled_caller_waits_for_the_work_and_its_result_is_discarded() -> None:
    worker = WorkerThreads("one", 1)
    begin = threading.Event()
    discarded: list[str] = []

    def work() -> str:
        begin.wait(10)
        return "opened"

    task = asyncio.create_task(worker.run(work, discarded.append))
    await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    begin.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert discarded == ["opened"]
    worker.stop()


async def test_several_threads_work_at_the_same_time() -> None:
    workers = WorkerThreads("several", 3)
    meeting = threading.Barrier(3, timeout=10)
    await asyncio.gather(*(workers.run(meeting.wait) for _ in range(3)))
    workers.stop()


async def test_stopped_threads_finish_what_they_have_and_take_nothing_more() -> None:
    worker = WorkerThreads("one", 1)
    last = worker.submit(lambda: "done")
    worker.stop()
    worker.stop()
    assert await last == "done"
    with pytest.raises(RuntimeError, match="stopped"):
        worker.submit(lambda: None)


def test_work_that_outlives_its_event_loop_disturbs_nobody() -> None:
    worker = WorkerThreads("one", 1)
    begin = threading.Event()

    async def leave_early() -> None:
        worker.submit(begin.wait)

    asyncio.run(leave_early())
    begin.set()

    async def come_back() -> int:
        return await worker.run(lambda: 7)

    assert asyncio.run(come_back()) == 7
    worker.stop()


async def test_a_waiting_thread_keeps_no_job_alive() -> None:
    class Payload:
        pass

    worker = WorkerThreads("one", 1)
    payload = Payload()
    gone = threading.Event()
    weakref.finalize(payload, gone.set)
    await worker.run(partial(id, payload))
    del payload
    assert gone.wait(5)
    worker.stop()
