"""Memory that is used again instead of asked for again."""

import platform
import subprocess
import sys

import pytest

from pydanube.runtime import allocator

_PROGRAM = """
import resource, sys
from collections import deque
from pydanube.runtime.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory(64 << 20)

def faults_of(batches):
    under_way, before = deque(maxlen=8), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for number in range(batches):
        under_way.append(b"x" * ((4 << 20) + number * 7919 % 100_000))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults_of(20)
print(faults_of(40))
"""


def faults(how: str) -> int:
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True
    )
    return int(ran.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_batches_that_come_use_the_memory_of_those_that_are_done() -> None:
    # A batch has a thousand pages: here a tenth of what 40 of them have, at most.
    assert faults("keep") < 4_000 < faults("leave")


def test_a_c_library_without_such_settings_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_freed_memory(64 << 20)
