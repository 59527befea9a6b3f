"""Write the message classes of proto/*.proto, and their types, into the wire room.

    python tools/generate_stubs.py          write them anew
    python tools/generate_stubs.py --check  fail if what is there is not what would be written

Each module holds the file's descriptor and loads it into PyDanube's own descriptor pool, so that
the code depends on no protobuf release and lives beside other code that defines the same package.
The types come from mypy-protobuf.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

REPOSITORY = Path(__file__).resolve().parent.parent
PROTO = REPOSITORY / "proto"
TARGET = REPOSITORY / "src/pydanube/wire/danube/generated"
BYTES_PER_LINE = 24

PACKAGE = '''"""Message classes and their types, written by tools/generate_stubs.py from proto/."""
'''

MODULE = '''"""The messages of {source}, written by tools/generate_stubs.py."""

from pydanube.wire.danube.private_pool import load as _load
{imports}
DESCRIPTOR = _load(
    (
{literal}
    ),
    globals(),
)
'''


def main() -> int:
    """Generate, or check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    files = generate()
    return report_differences(files) if arguments.check else write(files)


def generate() -> dict[str, str]:
    """Return the text of every generated file by name."""
    sources = sorted(path.name for path in PROTO.glob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        descriptors = compile_protos(sources, Path(scratch))
        files = {"__init__.py": PACKAGE}
        for descriptor in descriptors.file:
            stem = module_name(descriptor.name)
            files[f"{stem}.py"] = render_module(descriptor)
            stub = (Path(scratch) / f"{stem}.pyi").read_text(encoding="utf-8")
            files[f"{stem}.pyi"] = import_from_this_package(stub)
    return files


def compile_protos(sources: list[str], scratch: Path) -> FileDescriptorSet:
    """Run protoc: types into `scratch`, descriptors back."""
    descriptor_set = scratch / "descriptors.bin"
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc"),
            f"--plugin=protoc-gen-mypy={plugin}",
            f"--proto_path={PROTO}",
            f"--mypy_out=quiet:{scratch}",
            f"--descriptor_set_out={descriptor_set}",
            *sources,
        ],
        check=True,
    )
    return FileDescriptorSet.FromString(descriptor_set.read_bytes())


def module_name(source: str) -> str:
    """Return the module of a .proto file: DanubeApi.proto → DanubeApi_pb2."""
    return f"{source.removesuffix('.proto')}_pb2"


def render_module(descriptor: FileDescriptorProto) -> str:
    """Return the Python text that loads one file's descriptor."""
    for message in descriptor.message_type:
        drop_derived_names(message)
    serialized = descriptor.SerializeToString(deterministic=True)
    lines = [
        f"        {serialized[start : start + BYTES_PER_LINE]!r}"
        for start in range(0, len(serialized), BYTES_PER_LINE)
    ]
    # A file can be added to the pool only after those it imports.
    imports = "".join(
        f"from . import {module_name(source)} as _{module_name(source)}\n"
        for source in descriptor.dependency
    )
    return MODULE.format(source=descriptor.name, imports=imports, literal="\n".join(lines))


def drop_derived_names(message: DescriptorProto) -> None:
    """Leave out the JSON names: protobuf derives the same ones from the fields' names."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        drop_derived_names(nested)


def import_from_this_package(stub: str) -> str:
    """Return the stub with imports of its siblings made relative."""
    return re.sub(r"^import (\w+_pb2) as", r"from . import \1 as", stub, flags=re.MULTILINE)


def write(files: dict[str, str]) -> int:
    """Put the files in place and remove what no .proto file accounts for."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for path in present_files():
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (TARGET / name).write_text(text, encoding="utf-8")
    print(f"wrote {len(files)} files to {TARGET.relative_to(REPOSITORY)}")
    return 0


def report_differences(files: dict[str, str]) -> int:
    """Name every file that is missing, stale or left over."""
    present = {path.name: path.read_text(encoding="utf-8") for path in present_files()}
    names = sorted(name for name in files | present if files.get(name) != present.get(name))
    for name in names:
        print(f"{(TARGET / name).relative_to(REPOSITORY)} does not match proto/")
    if names:
        print("Write the files anew with: python tools/generate_stubs.py")
    return 1 if names else 0


def present_files() -> list[Path]:
    """Return the generated files that are there now."""
    return [path for pattern in ("*.py", "*.pyi") for path in TARGET.glob(pattern)]


if __name__ == "__main__":
    sys.exit(main())
