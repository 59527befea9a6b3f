"""A bar on a terminal while a benchmark runs, lines elsewhere; both on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pydanube.bench.rounds import Step


@contextmanager
def shown(steps: int) -> Iterator[Step]:
    """Give what is to be told of every step that begins."""
    if not sys.stderr.isatty():
        yield _say
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn()
    said = TextColumn("{task.description}")
    with Progress(*columns, said, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=steps)
        begun = False

        def step(what: str) -> None:
            nonlocal begun
            progress.update(task, description=what, advance=1 if begun else 0)
            begun = True

        yield step
        progress.update(task, completed=steps, description="done")


def _say(what: str) -> None:
    sys.stderr.write(f"{what}\n")
