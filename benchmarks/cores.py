"""Which of the machine's cores the processes of a benchmark run on."""

import os
from typing import NamedTuple

import psutil

CHOICES = ("shared", "divided")


class Cores(NamedTuple):
    """Where the processes run; nowhere in particular unless they are divided."""

    broker: int | None = None
    others: int | None = None

    @classmethod
    def chosen(cls, choice: str) -> "Cores":
        """Return what one of `CHOICES` stands for."""
        return DIVIDED if choice == "divided" else SHARED


SHARED, DIVIDED = Cores(), Cores(broker=0, others=1)


def keep_on(core: int | None, pid: int) -> None:
    """Give all threads of a process, and of those it has started, one core."""
    if core is None:
        return
    first = psutil.Process(pid)
    for process in (first, *first.children(recursive=True)):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, {core})
