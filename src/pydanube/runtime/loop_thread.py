"""An event loop on a thread of its own, for callers that have none or must not share theirs."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from pydanube.runtime.process import new_event_loop

_Result = TypeVar("_Result")


class LoopThread:
    """Runs coroutines for other threads, from construction until `stop`.

    Any number of threads may call at once. What still runs when it stops is cancelled, and has
    ended when `stop` returns. The thread never keeps a process alive.
    """

    def __init__(self, name: str) -> None:
        ready: Future[asyncio.AbstractEventLoop] = Future()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=_run, args=(ready,), name=name, daemon=True)
        self._thread.start()
        self._loop = ready.result()

    @property
    def is_stopped(self) -> bool:
        """Tell whether it takes no more work."""
        return self._stopped

    @property
    def is_current(self) -> bool:
        """Tell whether the caller is on this thread, and so cannot wait for it."""
        return threading.current_thread() is self._thread

    def call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Wait for `work` and return its result; a caller that is interrupted cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Changes nothing if it was the work itself that failed.
            raise

    async def await_call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do the same for a caller on another event loop, which goes on meanwhile."""
        return await asyncio.wrap_future(self.submit(work))

    def stop(self) -> None:
        """Cancel what still runs and end the thread; a second call changes nothing.

        Called on that thread itself, it returns at once, and the thread ends after it.
        """
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_current:
            self._thread.join()

    def submit(self, work: Coroutine[Any, Any, _Result]) -> "Future[_Result]":
        """Start `work` and return what to wait for; cancelling that cancels the work."""
        with self._lock:
            if self._stopped or self.is_current:
                work.close()
                reason = "has been stopped" if self._stopped else "cannot wait for itself"
                raise RuntimeError(f"event loop {self._thread.name} {reason}")
            return asyncio.run_coroutine_threadsafe(work, self._loop)


def _run(ready: "Future[asyncio.AbstractEventLoop]") -> None:
    # A runner cancels and awaits what is left when it closes.
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        loop = runner.get_loop()
        loop.call_soon(ready.set_result, loop)
        loop.run_forever()
