"""What long-running commands share: ending on a signal, and telling how far they are."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click
from msgspec import Struct
from typing_extensions import override

from pydanube.runtime.clock import Clock
from pydanube.runtime.process import StopSignals
from pydanube.runtime.tasks import TaskScope

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_EVERY_MS = 5_000


class Rate(Struct, frozen=True, kw_only=True):
    """How much was done in how long."""

    messages: int
    bytes: int
    seconds: float
    messages_per_second: float

    @override
    def __str__(self) -> str:
        return (
            f"{self.messages} messages, {self.bytes} bytes, in {self.seconds:.1f} s "
            f"({self.messages_per_second:g}/s)"
        )


class Meter:
    """Counts messages, and shows the count on stderr: a bar on a terminal, lines elsewhere."""

    def __init__(self, clock: Clock, verb: str, expected: int | None, *, quiet: bool) -> None:
        self.messages = 0
        self.bytes = 0
        self._clock = clock
        self._verb = verb
        self._expected = expected
        self._quiet = quiet
        self._started_ms = clock.monotonic_ms()
        self._line_ms = self._started_ms
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._bar = self._open_bar()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def count(self, payload_bytes: int) -> None:
        """One more message is done."""
        self.messages += 1
        self.bytes += payload_bytes
        if self._quiet:
            return
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, advance=1)
        elif self._clock.monotonic_ms() - self._line_ms >= LINE_EVERY_MS:
            self._line_ms = self._clock.monotonic_ms()
            click.echo(self._line(), err=True)

    def rate(self) -> Rate:
        """Return what was done since the start."""
        seconds = max(self._clock.monotonic_ms() - self._started_ms, 1) / 1_000
        return Rate(
            messages=self.messages,
            bytes=self.bytes,
            seconds=seconds,
            messages_per_second=round(self.messages / seconds, 1),
        )

    def _line(self) -> str:
        of = "" if self._expected is None else f" of {self._expected}"
        return f"{self._verb} {self.messages}{of} ({self.rate().messages_per_second:g}/s)"

    def _open_bar(self) -> "tuple[Progress, TaskID]":
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        progress = Progress(
            TextColumn(self._verb),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        progress.start()
        return progress, progress.add_task(self._verb, total=self._expected)


@asynccontextmanager
async def stopped_by_signals() -> AsyncIterator[asyncio.Event]:
    """Give an event that SIGINT or SIGTERM sets; the second signal ends the process at once."""
    stop = asyncio.Event()
    with StopSignals() as signals:

        async def watch() -> None:
            await signals.wait()
            stop.set()

        tasks = TaskScope(report_failure)
        tasks.start(watch(), "signals")
        try:
            yield stop
        finally:
            await tasks.close()


def report_failure(task: str, failure: BaseException) -> None:
    """Tell that something beside the command itself failed."""
    click.echo(f"error: {task}: {failure}", err=True)
