"""An event loop whose time is virtual: it never waits, it jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

from typing_extensions import override

from pydanube.runtime.randomness import Randomness, SeededRandomness

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")
_TASKS_NAMED_MAX = 50


class SimulatedDeadlock(RuntimeError):
    """Nothing can ever happen again: no callback is ready and no timer is set."""


class SimulationLimit(RuntimeError):
    """The world ran longer than it may; something repeats itself without an end."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Runs callbacks in the order of their virtual times, starting at 0 seconds.

    Threads and sockets have no place here: they would bring real time and another order each time.
    The same program makes the same steps as long as it does not itself iterate over sets of
    strings or objects, whose order differs between processes.
    """

    threadless = True
    """Tells `runtime.threads` to carry jobs out here."""

    def __init__(self, seconds_max: float, steps_max: int) -> None:
        self._seconds = 0.0
        self._seconds_max = seconds_max
        self._steps = 0
        self._steps_max = steps_max
        super().__init__(_TimeSelector(self._pass_time))

    @property
    def steps(self) -> int:
        """Count the rounds of callbacks so far."""
        return self._steps

    def extend(self, seconds: float, steps: int) -> None:
        """Allow that much more from now on."""
        self._seconds_max = self._seconds + seconds
        self._steps_max = self._steps + steps

    @override
    def time(self) -> float:
        return self._seconds

    @override
    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[_Arguments]], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    @override
    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[Unpack[_Arguments]], _Result],
        *args: *_Arguments,
    ) -> asyncio.Future[_Result]:
        raise RuntimeError(f"a simulated world has no threads, but {func} was sent to one")

    def _pass_time(self, timeout: float | None) -> None:
        """Take the place of waiting for `timeout` seconds; None would be for ever."""
        self._steps += 1
        if timeout is None:
            raise SimulatedDeadlock(
                f"nothing is left that could happen at {self._seconds:.6f} s; "
                f"waiting are:\n{self._describe_tasks()}"
            )
        self._seconds += timeout
        if self._seconds > self._seconds_max or self._steps > self._steps_max:
            raise SimulationLimit(
                f"still busy after {self._seconds:.6f} virtual seconds and {self._steps} steps; "
                f"running are:\n{self._describe_tasks()}"
            )

    def _describe_tasks(self) -> str:
        lines = sorted(_describe(task) for task in asyncio.all_tasks(self))
        left_off = len(lines) - _TASKS_NAMED_MAX
        return "\n".join(
            lines[:_TASKS_NAMED_MAX] + ([f"  and {left_off} more"] if left_off > 0 else [])
        )


class _TimeSelector(selectors.SelectSelector):
    """A selector that asks nobody: no file descriptor is ever ready, and waiting takes no time."""

    def __init__(self, pass_time: Callable[[float | None], None]) -> None:
        super().__init__()
        self._pass_time = pass_time

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._pass_time(timeout)
        return []


def run_simulated(
    main: Callable[[Randomness], Coroutine[Any, Any, _Result]],
    seed: int | str,
    *,
    seconds_max: float = 1_000_000.0,
    steps_max: int = 5_000_000,
) -> _Result:
    """Run `main` in virtual time with randomness of that seed, and return its result.

    What fails names the seed. An error that nobody handles, in a task or in a callback, fails the
    run as well. Tasks still running at the end are cancelled.
    """
    loop = SimulatedLoop(seconds_max, steps_max)
    unhandled: list[BaseException] = []

    def note_unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        unhandled.append(error or RuntimeError(str(context.get("message"))))

    loop.set_exception_handler(note_unhandled)
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                result = runner.run(main(SeededRandomness(seed)))
            finally:
                ended_at = f"seed {seed!r}, {loop.time():.6f} virtual seconds, {loop.steps} steps"
                # Tasks that are cancelled now may need a little time for it, limit or not.
                loop.extend(seconds=3600.0, steps=100_000)
        if unhandled:
            raise unhandled[0]
    except BaseException as error:
        error.add_note(ended_at)
        raise
    return result


def _describe(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    where = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "its end"
    return f"  {task.get_name()} at {where}"
