"""The process itself: its event loop, and the signals that ask it to stop."""

import asyncio
import math
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def run(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a program on the fastest event loop that is installed."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return the fastest event loop that is installed."""
    try:
        import uvloop
    except ImportError:  # There is none for Windows.
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@contextmanager
def unwound_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end what runs within as Ctrl-C does, so that it ends its child processes too.

    It is raised as SystemExit, in the main thread, which alone may enter here. The second one ends
    the process at once.
    """

    def receive(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)  # As shells count it.

    before = signal.signal(signal.SIGTERM, receive)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_at_once(code: int) -> None:
    """End this process without waiting for its threads, of which one may hang in a disk for ever.

    The kernel itself waits for a thread whose device does not answer; nobody can end such a one.
    """
    _flush_outputs()
    os._exit(code)


def begin_anew() -> None:
    """Run this program from its beginning in this process: same number, arguments, environment.

    Descriptors are closed and threads ended by that, so nothing of before can go on. Returns only
    if it cannot be done.
    """
    _flush_outputs()
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except OSError:
        return


def _flush_outputs() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


class StopSignals:
    """SIGTERM and SIGINT as something to wait for. The second one ends the process at once."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._arrived = asyncio.Event()

    def __enter__(self) -> "StopSignals":
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._receive, number)
        return self

    def __exit__(self, *details: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    def _receive(self, number: signal.Signals) -> None:
        if self._received is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._received = number
        self._arrived.set()

    async def wait(self) -> str:
        """Return the name of the signal that asked to stop."""
        await self._arrived.wait()
        assert self._received is not None
        return self._received.name

    async def unless_asked(
        self,
        work: Coroutine[Any, Any, _Result],
        *,
        seconds_max: float = math.inf,
        overdue: Callable[[], None] = lambda: None,
    ) -> _Result | None:
        """Return what comes of some work; None if it was given up because of a signal.

        `overdue` is called if giving up takes longer than so many seconds.
        """
        task = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._arrived.wait())
        timers: list[asyncio.TimerHandle] = []

        def give_up(_: object) -> None:
            if not task.cancel():
                return
            if seconds_max < math.inf:
                timers.append(asyncio.get_running_loop().call_later(seconds_max, overdue))

        asked.add_done_callback(give_up)
        try:
            return await task
        except asyncio.CancelledError:
            if self._received is None:
                raise
            return None
        finally:
            asked.cancel()
            for timer in timers:
                timer.cancel()


class StopFlag:
    """SIGTERM and SIGINT as something to look at, where no event loop runs; in the main thread.

    The second signal ends the process at once. Elsewhere, or before `__enter__`, only `set` counts.
    """

    def __init__(self) -> None:
        self._wanted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopFlag":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def is_set(self) -> bool:
        """Whether somebody asked to stop."""
        return self._wanted

    def set(self) -> None:
        """Ask to stop."""
        self._wanted = True

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self._wanted:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._wanted = True
