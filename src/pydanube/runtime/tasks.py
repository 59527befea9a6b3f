"""Tasks with one owner each: nothing runs that nobody waits for, and no failure is lost."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Failed = Callable[[str, BaseException], None]


class TaskScope:
    """Owns tasks. Closing it cancels and awaits them all.

    A task that fails is reported to `on_failure` with its name, at once; a cancelled one is not.
    """

    def __init__(self, on_failure: Failed) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run `work` until it ends or the scope closes."""
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
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
