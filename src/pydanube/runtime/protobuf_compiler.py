"""Compiles Protobuf text in a process of its own, within limits of time and memory."""

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pydanube.schemas.errors import InvalidSchema, SchemaCompilerUnavailable

_SECONDS_MAX = 10
_MEMORY_BYTES_MAX = 1 << 30
_OUTPUT_BYTES_MAX = 16 << 20
_MESSAGE_CHARS_MAX = 2_000

_LOG_LINE = re.compile(r"WARNING: All log messages|[IWEF]\d{4} ")
"""What the compiler's library says about itself."""

# Runs without site packages, environment or standard input. The limits hold before the compiler
# is loaded, and it is told of no directory but the text's own and that of google/protobuf.
_PROGRAM = """
import resource, sys
package, seconds, memory, output = sys.argv[1], *map(int, sys.argv[2:5])
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
resource.setrlimit(resource.RLIMIT_FSIZE, (output, output))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
sys.path.insert(0, package)
from grpc_tools import _protoc_compiler
arguments = ["protoc", "-I.", "-I" + package + "/grpc_tools/_proto", "--include_imports",
             "--descriptor_set_out=compiled", "schema.proto"]
sys.exit(_protoc_compiler.run_main([argument.encode() for argument in arguments]))
"""


class ProcessProtobufCompiler:
    """The `ProtobufCompiler` of a real machine; each text gets a process and an empty directory."""

    def __init__(self, seconds_max: int = _SECONDS_MAX) -> None:
        self._seconds_max = seconds_max

    def compile(self, text: str) -> bytes:
        """Return the FileDescriptorSet of a text, what it imports included."""
        package = _package_directory()
        with tempfile.TemporaryDirectory(prefix="pydanube-protobuf-") as name:
            directory = Path(name)
            (directory / "schema.proto").write_text(text, encoding="utf-8")
            self._run(package, directory)
            try:
                return (directory / "compiled").read_bytes()
            except FileNotFoundError as error:
                raise SchemaCompilerUnavailable(
                    "the Protobuf compiler ended without a result; try again"
                ) from error

    def _run(self, package: str, directory: Path) -> None:
        limits = (self._seconds_max, _MEMORY_BYTES_MAX, _OUTPUT_BYTES_MAX)
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, package, *map(str, limits)],
                cwd=directory,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=self._seconds_max,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InvalidSchema(
                f"the Protobuf compiler took more than {self._seconds_max} seconds; "
                "simplify the definition"
            ) from error
        except OSError as error:
            raise SchemaCompilerUnavailable(
                f"the Protobuf compiler could not be started: {error}"
            ) from error
        if done.returncode == 1 and not done.stderr.startswith(b"Traceback"):
            raise InvalidSchema(f"not Protobuf: {_words(done.stderr)}")
        if done.returncode != 0:
            raise InvalidSchema(
                f"the Protobuf compiler gave up (exit status {done.returncode}); simplify the "
                "definition"
            )


def _package_directory() -> str:
    spec = importlib.util.find_spec("grpc_tools")
    if spec is None or not spec.submodule_search_locations:
        raise SchemaCompilerUnavailable(
            "the package grpcio-tools is not installed, so Protobuf text cannot be compiled; "
            "give a FileDescriptorSet instead"
        )
    return str(Path(spec.submodule_search_locations[0]).parent)


def _words(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").splitlines()
    text = " ".join(line.strip() for line in lines if not _LOG_LINE.match(line))
    return text if len(text) <= _MESSAGE_CHARS_MAX else text[:_MESSAGE_CHARS_MAX] + "…"
