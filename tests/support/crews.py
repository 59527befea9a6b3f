"""Workers in this process that behave as badly as executors may."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pydanube.tables.crew import Crew


class UnsteadyWorkers:
    """Does tasks in any order, some of them twice; tasks and results travel as bytes."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self.done: list[Any] = []
        self.before: Callable[[Any], None] = lambda task: None
        """Called ahead of each task."""
        self.after: Callable[[], None] = lambda: None
        """Called once all tasks are done."""

    def ready(self) -> bool:
        return True

    def run(self, work: Callable[[Any], Any], tasks: Sequence[Any], kind: type[Any]) -> list[Any]:
        numbers = list(range(len(tasks)))
        numbers += self._random.sample(numbers, len(numbers) // 3)
        self._random.shuffle(numbers)
        found = {}
        for number in numbers:
            task = msgspec.msgpack.decode(
                msgspec.msgpack.encode(tasks[number]), type=type(tasks[number])
            )
            self.before(task)
            self.done.append(task)
            found[number] = msgspec.msgpack.encode(work(task))
        self.after()
        return [msgspec.msgpack.decode(found[number], type=kind) for number in range(len(tasks))]


def crew_of(workers: UnsteadyWorkers, rows: int = 3, commit_rows: int = 1_000) -> Crew:
    """A crew that takes everything, in pieces of so many rows; topics in memory say 100 bytes."""
    return Crew(workers=workers, bytes_min=0, task_bytes=100 * rows, commit_bytes=100 * commit_rows)
