"""Protobuf text is compiled in a process that cannot take this one along."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from pydanube.runtime import protobuf_compiler
from pydanube.runtime.protobuf_compiler import ProcessProtobufCompiler
from pydanube.schemas.errors import InvalidSchema, SchemaCompilerUnavailable

TEXT = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
message A { google.protobuf.Timestamp at = 1; }
"""


def test_text_is_compiled_with_what_it_imports() -> None:
    files = FileDescriptorSet.FromString(ProcessProtobufCompiler().compile(TEXT))
    assert [each.name for each in files.file] == ["google/protobuf/timestamp.proto", "schema.proto"]


def test_mistakes_come_back_in_the_compilers_words() -> None:
    with pytest.raises(InvalidSchema, match=r"schema\.proto:1:.* Expected"):
        ProcessProtobufCompiler().compile("message A { what }")


@pytest.mark.parametrize("path", ["/etc/hostname", "../../etc/hostname", "other.proto"])
def test_no_other_file_is_read(path: str) -> None:
    with pytest.raises(InvalidSchema, match="Import"):
        ProcessProtobufCompiler().compile(f'syntax = "proto3"; import "{path}"; message A {{}}')


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ProcessProtobufCompiler().compile(TEXT)
    with pytest.raises(InvalidSchema):
        ProcessProtobufCompiler().compile("nonsense")
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_compiler, "_PROGRAM", "import time; time.sleep(60)")
    with pytest.raises(InvalidSchema, match="more than 1 seconds"):
        ProcessProtobufCompiler(seconds_max=1).compile(TEXT)


def test_a_compiler_that_takes_too_much_memory_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = protobuf_compiler._PROGRAM.replace("sys.path", "bytearray(2 << 30); sys.path", 1)
    monkeypatch.setattr(protobuf_compiler, "_PROGRAM", greedy)
    with pytest.raises(InvalidSchema, match="gave up"):
        ProcessProtobufCompiler().compile(TEXT)


def test_a_compiler_that_crashes_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_compiler, "_PROGRAM", "import os; os.abort()")
    with pytest.raises(InvalidSchema, match="gave up"):
        ProcessProtobufCompiler().compile(TEXT)


def test_the_compiler_sees_no_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(os.environ, "DANUBE_SECRET", "x")
    program = "import os, sys; sys.stderr.write(repr(sorted(os.environ))); sys.exit(1)"
    monkeypatch.setattr(protobuf_compiler, "_PROGRAM", program)
    with pytest.raises(InvalidSchema) as refused:
        ProcessProtobufCompiler().compile(TEXT)
    assert "DANUBE_SECRET" not in str(refused.value)


def test_without_a_compiler_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_compiler.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SchemaCompilerUnavailable, match="FileDescriptorSet"):
        ProcessProtobufCompiler().compile(TEXT)


def test_a_process_that_cannot_start_is_no_fault_of_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(SchemaCompilerUnavailable, match="could not be started"):
        ProcessProtobufCompiler().compile(TEXT)
