"""A program at a terminal, as somebody sits before it: what it shows is read, lines are typed."""

import os
import pty
import select
import signal
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

END = b"\x04"
LOOK_SECONDS = 0.1


class Terminal:
    """Runs a program in a pseudo-terminal of its own; leaving it ends the program."""

    def __init__(self, words: Sequence[str], **environment: str) -> None:
        self._words = words
        self._environment = environment
        self._read = 0
        self.shown = ""
        self._status: int | None = None

    def __enter__(self) -> Self:
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            try:
                os.execve(self._words[0], self._words, {**os.environ, **self._environment})
            finally:
                os._exit(127)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._file)

    def until(self, text: str, seconds_max: float) -> None:
        """Wait until a text is shown, behind what was waited for before."""
        deadline = time.monotonic() + seconds_max
        while (found := self.shown.find(text, self._read)) < 0:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} is not shown: {self.shown[-3000:]}"
            assert self._take(left), f"it has ended without {text!r}: {self.shown[-3000:]}"
        self._read = found + len(text)

    def type(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())

    def leave(self, prompt: str, seconds_max: float) -> int:
        """Type the end of input at the prompt; return the exit code of the program."""
        # Before the prompt is there the terminal is in another mode, in which it would be lost.
        self.until(prompt, seconds_max)
        os.write(self._file, END)
        deadline = time.monotonic() + seconds_max
        # Not until the terminal closes: what the program has started may keep it open for longer.
        while (ended := os.waitpid(self._pid, os.WNOHANG))[0] == 0:
            assert time.monotonic() < deadline, f"it does not end: {self.shown[-3000:]}"
            self._take(LOOK_SECONDS)
        self._status = os.waitstatus_to_exitcode(ended[1])
        return self._status

    def _take(self, seconds_max: float) -> bool:
        """Read what is shown within a time; False at the end."""
        ready, _, _ = select.select([self._file], [], [], seconds_max)
        if not ready:
            return True
        try:
            read = os.read(self._file, 65536)
        except OSError:  # What Linux says when nobody has the terminal open any more.
            return False
        self.shown += read.decode(errors="replace")
        return bool(read)
