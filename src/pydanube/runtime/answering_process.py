"""A process of our own that answers lines, for libraries that hold the interpreter lock."""

import contextlib
import select
import subprocess
import sys
import threading
from collections.abc import Callable


class AnsweringProcess:
    """Answers one line with one line. It starts when asked, and ends by itself when idle.

    `greeting` is the first line of each process: what it must know, secrets included, since
    nothing of it shows in the list of processes. `ask` blocks and belongs into a thread; it raises
    OSError when the process cannot be started, ends without an answer, or takes too long.
    """

    def __init__(self, module: str, greeting: bytes, seconds_max: float) -> None:
        self._module = module
        self._greeting = greeting
        self._seconds_max = seconds_max
        self._asking = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def ask(self, line: bytes) -> bytes:
        """Return the answer to a line, which holds no line feed."""
        with self._asking:
            answer = b"" if self._process is None else self._ask(self._process, line)
            if not answer:
                # It was not there yet, or had been idle for so long that it left.
                self._end()
                answer = self._ask(self._start(), line)
            if not answer:
                self._end()
                raise OSError(f"{self._module} ended without an answer")
            return answer

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._stopped:
            raise OSError(f"{self._module} has been stopped")
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", self._module], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._say(process, self._greeting)
        return process

    def _ask(self, process: "subprocess.Popen[bytes]", line: bytes) -> bytes:
        timer = threading.Timer(self._seconds_max, process.kill)
        timer.daemon = True
        timer.start()
        try:
            self._say(process, line)
            assert process.stdout is not None
            return process.stdout.readline().rstrip(b"\n")
        finally:
            timer.cancel()

    @staticmethod
    def _say(process: "subprocess.Popen[bytes]", line: bytes) -> None:
        assert process.stdin is not None
        # That it has left shows in its answer.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(line + b"\n")
            process.stdin.flush()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def stop(self) -> None:
        """End the process; whoever waits for an answer gets none."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()
        with self._asking:
            self._end()


def answer_lines(
    begin: Callable[[bytes], Callable[[bytes], bytes]], idle_seconds_max: float
) -> None:
    """Serve as such a process: `begin` takes the greeting and returns what answers lines."""
    # Unbuffered: what a buffer has read ahead would not show to `select`.
    lines = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
    answer = begin(lines.readline().rstrip(b"\n"))
    while True:
        # Lines come one at a time, each after the answer to the one before.
        if not select.select([lines], [], [], idle_seconds_max)[0]:
            return
        line = lines.readline()
        if not line:
            return
        sys.stdout.buffer.write(answer(line.rstrip(b"\n")) + b"\n")
        sys.stdout.buffer.flush()
