"""Memory is shown to who knows its name, and nothing else is."""

import fcntl
import mmap
import os
import subprocess
import sys

import pytest

from pydanube.runtime.shared_memory import SharedMemory, open_shared

SIZE = 1 << 16


def test_another_process_reads_what_was_written():
    memory = SharedMemory(SIZE)
    memory.view[100:105] = b"hello"
    program = (
        "import sys; from pydanube.runtime.shared_memory import open_shared;"
        f"print(bytes(open_shared(sys.argv[1], {SIZE})[100:105]))"
    )
    command = [sys.executable, "-c", program, memory.name]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout == "b'hello'\n"


def test_a_reader_sees_what_comes_later_cannot_write_and_outlives_the_owner():
    memory = SharedMemory(SIZE)
    view = open_shared(memory.name, SIZE)
    memory.view[:3] = b"new"
    assert view[:3] == b"new"
    assert view.readonly
    name = memory.name
    del memory
    assert view[:3] == b"new"
    with pytest.raises(OSError):
        open_shared(name, SIZE)


@pytest.mark.parametrize(
    "name",
    ["", "1/2", "/etc/passwd", "../../etc/passwd", "1/2/" + "g" * 32, "-1/2/" + "0" * 32],
)
def test_what_is_no_name_is_refused(name):
    with pytest.raises(FileNotFoundError):
        open_shared(name, SIZE)


def test_a_guessed_secret_opens_nothing():
    memory = SharedMemory(SIZE)
    process, descriptor, secret = memory.name.split("/")
    guessed = secret[:-1] + ("0" if secret[-1] != "0" else "1")
    with pytest.raises(FileNotFoundError, match="not what that process shares"):
        open_shared(f"{process}/{descriptor}/{guessed}", SIZE)


def test_other_files_of_a_process_are_not_opened(tmp_path):
    path = tmp_path / "secrets"
    path.write_text("the key")
    reading, writing = os.pipe()
    with path.open() as file:
        for descriptor in (file.fileno(), reading, writing):
            with pytest.raises(FileNotFoundError, match="not what that process shares"):
                open_shared(f"{os.getpid()}/{descriptor}/{'0' * 32}", SIZE)
    os.close(reading)
    os.close(writing)


def test_memory_that_may_still_be_cut_is_refused():
    secret = "0" * 32
    descriptor = os.memfd_create(f"danube-{secret}", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    name = f"{os.getpid()}/{descriptor}/{secret}"
    with pytest.raises(PermissionError, match="sealed"):
        open_shared(name, SIZE)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    assert len(open_shared(name, SIZE)) == SIZE
    os.close(descriptor)


def test_a_limit_bounds_what_is_mapped():
    memory = SharedMemory(SIZE)
    with pytest.raises(PermissionError, match=f"{SIZE} bytes"):
        open_shared(memory.name, SIZE - mmap.PAGESIZE)


def test_descriptors_are_closed_with_the_memory():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        memory = SharedMemory(SIZE)
        assert open_shared(memory.name, SIZE)
        del memory
    assert len(os.listdir("/proc/self/fd")) == before
