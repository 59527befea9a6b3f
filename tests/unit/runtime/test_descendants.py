"""Descendants end when asked; other processes go on."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil

from pydanube.runtime.descendants import end_descendants

MODULE = "shop.workers"
SECONDS_MAX = 30.0
WAIT = "import sys; print('ready', flush=True); sys.stdin.read()"
NEGLECT_ONE = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {WAIT!r}, {MODULE!r}])
sys.stdin.read()
"""
LOOK_AFTER_ONE = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {WAIT!r}, {MODULE!r}], check=False)
print("alone", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(program: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a program whose command has these words until it is asked to end, or the test ends."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert line(started) == "ready"
        yield started


def line(started: "subprocess.Popen[str]") -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def test_descendants_that_run_the_module_have_ended_and_others_go_on():
    with ExitStack() as running:
        child = running.enter_context(process(WAIT, MODULE))
        other = running.enter_context(process(WAIT, f"{MODULE}.of_others"))
        parent = running.enter_context(process(LOOK_AFTER_ONE, "shop.parents"))
        end_descendants(MODULE, SECONDS_MAX)
        assert line(parent) == "alone"
        assert child.poll() is not None
        assert (other.poll(), parent.poll()) == (None, None)


def test_one_whose_parent_takes_no_notice_of_its_end_is_not_waited_for():
    with process(NEGLECT_ONE, "shop.parents") as parent:
        end_descendants(MODULE, seconds_max=3600)  # It would run out of the time of a test.
        (neglected,) = psutil.Process(parent.pid).children()
        assert neglected.status() == psutil.STATUS_ZOMBIE
