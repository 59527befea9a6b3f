import sys

import pytest

from pydanube.runtime.answering_process import AnsweringProcess

PROGRAM = """
import os
from pydanube.runtime.answering_process import answer_lines

def begin(greeting):
    def answer(line):
        if line == b"die":
            os._exit(3)
        if line == b"hang":
            import time
            time.sleep(60)
        return greeting + b" " + line + b" " + str(os.getpid()).encode()
    return answer

answer_lines(begin, {idle})
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    def write(idle=30.0):
        (tmp_path / "answering_test_program.py").write_text(PROGRAM.format(idle=idle))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "answering_test_program"

    return write


@pytest.fixture
def started(program):
    processes = []

    def start(seconds_max=20.0, **options):
        processes.append(AnsweringProcess(program(**options), b"hello", seconds_max))
        return processes[-1]

    yield start
    for process in processes:
        process.stop()


def pid_of(answer):
    return answer.split()[-1]


def test_one_process_answers_all_lines(started):
    process = started()
    first, second = process.ask(b"one"), process.ask(b"two")
    assert first.startswith(b"hello one ")
    assert second.startswith(b"hello two ")
    assert pid_of(first) == pid_of(second)


def test_a_process_that_has_left_for_idleness_is_started_again(started):
    process = started(idle=0.05)
    first = process.ask(b"one")
    assert process._process is not None
    process._process.wait(10)
    assert pid_of(process.ask(b"two")) != pid_of(first)


def test_a_process_that_dies_over_a_line_is_an_error_and_the_next_line_is_answered(started):
    process = started()
    process.ask(b"one")
    with pytest.raises(OSError, match="without an answer"):
        process.ask(b"die")
    assert process.ask(b"two").startswith(b"hello two ")


def test_a_process_that_takes_too_long_is_ended(started):
    process = started(seconds_max=1.5)
    with pytest.raises(OSError, match="without an answer"):
        process.ask(b"hang")


def test_nothing_starts_after_the_end(started):
    process = started()
    process.stop()
    with pytest.raises(OSError, match="stopped"):
        process.ask(b"one")


def test_secrets_do_not_show_in_the_list_of_processes(started):
    process = started()
    process.ask(b"one")
    assert process._process is not None
    assert process._process.args == [sys.executable, "-m", "answering_test_program"]
