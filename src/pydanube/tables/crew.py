"""Many hands: one piece of work cut into tasks, done in this process or by Spark's executors.

A task says everything it takes, so that it can be done anywhere, and done again: what it leaves
behind are files that are in no commit. Only whoever gave the tasks out commits.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from pydanube.tables.ranges import TableTools

CREW_BYTES_MIN = 1024**3
"""Less than that is done here: starting Spark takes longer."""
CREW_COMMIT_BYTES = 8 * 1024**3
TASK_BYTES = 64 * 1024 * 1024

Task = TypeVar("Task", bound=Struct)
Result = TypeVar("Result", bound=Struct)


class Toolbox(Protocol):
    """Where tools come from; it travels to whoever does a task."""

    def open(self) -> AbstractContextManager[TableTools]:
        """Give the tools, for as long as they are used."""


class Workers(Protocol):
    """Whoever does tasks."""

    def run(
        self, work: Callable[[Task], Result], tasks: Sequence[Task], kind: type[Result]
    ) -> list[Result]:
        """Do all tasks and return what came of them, in their order.

        A task may be done more than once, also at the same time; one result of it is returned.
        """

    def ready(self) -> bool:
        """Tell whether they can be had."""


class Crew(Struct, frozen=True, kw_only=True):
    """Workers, and from which size on they are worth it."""

    workers: Workers
    bytes_min: int = CREW_BYTES_MIN
    task_bytes: int = TASK_BYTES
    commit_bytes: int = CREW_COMMIT_BYTES
    optional: bool = False
    """Whether what they cannot do is done here."""

    def takes(self, size: int) -> bool:
        """Tell whether work of so many bytes is theirs."""
        return size >= self.bytes_min and (not self.optional or self.workers.ready())


class HereWorkers:
    """Does the tasks in this process, one after the other."""

    def run(
        self, work: Callable[[Task], Result], tasks: Sequence[Task], kind: type[Result]
    ) -> list[Result]:
        """Do all tasks."""
        return [work(each) for each in tasks]

    def ready(self) -> bool:
        """They always are."""
        return True


class InTools(Generic[Task, Result]):
    """A task done with tools of its own: what workers are given to do."""

    def __init__(self, toolbox: Toolbox, work: Callable[[TableTools, Task], Result]) -> None:
        self._toolbox = toolbox
        self._work = work

    def __call__(self, task: Task) -> Result:
        """Do a task."""
        with self._toolbox.open() as tools:
            return self._work(tools, task)


def spread(start: int, end: int, rows: int) -> Iterator[tuple[int, int]]:
    """Cut [start, end) into parts of so many rows, the last one shorter."""
    for low in range(start, end, max(1, rows)):
        yield low, min(end, low + max(1, rows))
