"""Hops to threads: blocking work leaves the event loop here and its outcome comes back."""

import asyncio
import errno
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from pydanube.runtime.tasks import wait_out

_Result = TypeVar("_Result")

NO_THREAD = frozenset({errno.EAGAIN})
"""How `WorkerThreads.start` says that there is no memory, or no number, for another thread."""


class WorkerThreads:
    """A fixed number of daemon threads that take jobs in the order of submission.

    With one thread, each job ends before the next begins. A submitted job is always carried out,
    also when nobody waits for it any more. Threads start with the first job and end after `stop`,
    or when the owner forgets them. One event loop at a time submits. A simulated event loop knows
    no threads: there, each job is carried out in a turn of the loop.
    """

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._started = False
        self._stopping = weakref.finalize(self, _stop, self._jobs, count)

    def submit(self, work: Callable[[], _Result]) -> asyncio.Future[_Result]:
        """Hand `work` to a thread; cancelling the future forgets the outcome, not the work."""
        if not self._stopping.alive:
            raise RuntimeError(f"threads {self._name} have been stopped")
        job = _Job(work)
        loop = asyncio.get_running_loop()
        if getattr(loop, "threadless", False):
            loop.call_soon(job.carry_out)
            return job.outcome
        self.start()
        self._jobs.put(job)
        return job.outcome

    async def run(
        self, work: Callable[[], _Result], discard: Callable[[_Result], None] | None = None
    ) -> _Result:
        """Carry out `work` and return its result.

        A cancelled caller leaves once the work has ended; `discard` then gets the unwanted result.
        """
        outcome = self.submit(work)
        try:
            return await wait_out(outcome)
        except asyncio.CancelledError:
            if discard is not None and outcome.exception() is None:
                discard(outcome.result())
            raise

    def stop(self) -> None:
        """End the threads once the jobs submitted so far are done; take no more."""
        self._stopping()

    def start(self) -> None:
        """Start the threads, if none runs; as many as can be had, and OSError if none can."""
        if self._started:
            return
        for number in range(self._count):
            thread = threading.Thread(
                target=_work_through, args=(self._jobs,), name=f"{self._name}-{number}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                if number == 0:
                    raise OSError(errno.EAGAIN, f"no thread for {self._name}: {error}") from error
                return
            self._started = True


class _Job(Generic[_Result]):
    """Work on its way to a thread, and its outcome on the way back."""

    __slots__ = ("_loop", "_work", "outcome")

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[_Result] = self._loop.create_future()

    def carry_out(self) -> None:
        try:
            result = self._work()
        except BaseException as error:  # noqa: BLE001  The thread lives on; the waiter is told.
            self._report(self._fail, error)
        else:
            self._report(self._succeed, result)

    def _report(self, settle: Callable[[Any], None], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(settle, value)
        except RuntimeError:
            # The loop has been closed, so nobody can be waiting.
            return

    def _succeed(self, result: _Result) -> None:
        if not self.outcome.done():
            self.outcome.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


def _work_through(jobs: "SimpleQueue[_Job[Any] | None]") -> None:
    while (job := jobs.get()) is not None:
        job.carry_out()
        # While the thread waits for the next job it must not keep the bytes of this one.
        del job


def _stop(jobs: "SimpleQueue[_Job[Any] | None]", count: int) -> None:
    for _ in range(count):
        jobs.put(None)
