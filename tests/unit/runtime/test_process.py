"""How a process ends that cannot wait for its threads."""

import subprocess
import sys
from pathlib import Path

_HANGS = """
import signal, sys, threading, time
from pydanube.runtime.process import begin_anew, end_at_once
turn = int(open(sys.argv[1]).read() or 0)
open(sys.argv[1], "w").write(str(turn + 1))
threading.Thread(target=time.sleep, args=(1000,)).start()
print("turn", turn, *sys.argv[2:])
if turn == 0:
    begin_anew()
end_at_once(74)
"""


def test_a_program_begins_anew_and_ends_though_a_thread_hangs(tmp_path: Path) -> None:
    turns = tmp_path / "turns"
    turns.touch()
    done = subprocess.run(
        [sys.executable, "-c", _HANGS, str(turns), "an argument"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 74, done.stderr
    assert done.stdout.splitlines() == ["turn 0 an argument", "turn 1 an argument"]
