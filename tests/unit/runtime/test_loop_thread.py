import asyncio
import threading
from collections.abc import Iterator

import pytest

from pydanube.runtime.loop_thread import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("under test")
    yield thread
    thread.stop()


async def name_of_thread() -> str:
    return threading.current_thread().name


def test_work_is_done_on_the_other_thread_and_its_result_comes_back(thread: LoopThread) -> None:
    assert thread.call(name_of_thread()) == "under test"


async def test_an_event_loop_waits_for_it_and_goes_on_meanwhile(thread: LoopThread) -> None:
    here = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def work() -> str:
        loop.call_soon_threadsafe(here.set)
        return await name_of_thread()

    waiting = asyncio.create_task(thread.await_call(work()))
    await here.wait()
    assert await waiting == "under test"


def test_an_error_reaches_the_caller_and_the_loop_lives_on(thread: LoopThread) -> None:
    async def fail() -> None:
        raise ValueError("strange")

    with pytest.raises(ValueError, match="strange"):
        thread.call(fail())
    assert thread.call(name_of_thread()) == "under test"


async def test_cancelling_the_caller_cancels_the_work(thread: LoopThread) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.create_task(thread.await_call(work()))
    assert await asyncio.to_thread(begun.wait, 10)
    waiting.cancel()
    assert await asyncio.to_thread(ended.wait, 10)


async def test_what_runs_when_it_stops_is_cancelled_and_has_ended(thread: LoopThread) -> None:
    begun = threading.Event()
    steps: list[str] = []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("ended")

    waiting = asyncio.create_task(thread.await_call(work()))
    assert await asyncio.to_thread(begun.wait, 10)
    thread.stop()
    assert steps == ["ended"]
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_a_stopped_loop_refuses_work_and_may_be_stopped_again(thread: LoopThread) -> None:
    thread.stop()
    thread.stop()
    with pytest.raises(RuntimeError, match="under test has been stopped"):
        thread.call(name_of_thread())


def test_a_loop_that_would_wait_for_itself_is_told(thread: LoopThread) -> None:
    async def work() -> str:
        return thread.call(name_of_thread())

    with pytest.raises(RuntimeError, match="cannot wait for itself"):
        thread.call(work())
