"""Tasks with one owner each: nothing runs that nobody waits for, and no failure is lost."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

Failed = Callable[[str, BaseException], None]
_Result = TypeVar("_Result")


async def wait_out(future: asyncio.Future[_Result]) -> _Result:
    """Return the future's result; a cancelled caller waits for it too, and is cancelled after it.

    So nobody goes on while something that was begun for them is still under way.
    """
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # Nobody will look at it any more.
        raise


async def carry_through(work: Awaitable[_Result]) -> _Result:
    """Return what `work` returns; a cancelled caller cannot stop it halfway, and waits for it."""
    return await wait_out(asyncio.ensure_future(work))


async def done_before(work: Coroutine[Any, Any, None], hopeless: Coroutine[Any, Any, None]) -> bool:
    """Do some work; False, and it is left as it is, if `hopeless` returns before it has ended.

    For work that may hang in something nobody can end but with the process.
    """
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(hopeless)
    try:
        await asyncio.wait([task, watch], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        return task.done()
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    finally:
        watch.cancel()


class TaskScope:
    """Owns tasks. Closing it cancels and awaits them all.

    A task that fails is reported to `on_failure` with its name, at once; a cancelled one is not.
    """

    def __init__(self, on_failure: Failed) -> None:
        self._on_failure = on_failure
        # A dict keeps the order of starting; the order of a set would differ from run to run.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run `work` until it ends or the scope closes."""
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def report(self, name: str, error: BaseException) -> None:
        """Report a failure of something that belongs to the same owner."""
        self._on_failure(name, error)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            self._on_failure(task.get_name(), failure)

    async def close(self) -> None:
        """Cancel what runs and wait until it has ended."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def call_soon(callback: Callable[[], None]) -> None:
    """Run `callback` on the event loop once what is running now has returned."""
    asyncio.get_running_loop().call_soon(callback)
