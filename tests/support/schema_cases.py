"""Pairs of schemas, and what the rules of compatibility say about them."""

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import yaml
from grpc_tools import protoc

from pydanube.schemas.catalog import load_format
from pydanube.schemas.errors import InvalidSchema
from pydanube.schemas.format import Schema, SchemaTools

CASES = Path(__file__).parents[1] / "scenarios" / "schemas"
WELL_KNOWN = Path(protoc.__file__).parent / "_proto"


class QuickCompiler:
    """Compiles in this process: text in tests is our own, and a process takes 40 ms."""

    def compile(self, text: str) -> bytes:
        return _compiled(text)


@lru_cache(maxsize=4096)
def _compiled(text: str) -> bytes:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "schema.proto").write_text(text, encoding="utf-8")
        arguments = ["protoc", f"-I{directory}", f"-I{WELL_KNOWN}", "--include_imports"]
        arguments += [f"--descriptor_set_out={directory}/out", "schema.proto"]
        if protoc.main(arguments) != 0:
            raise InvalidSchema(f"not Protobuf: {text}")
        return (directory / "out").read_bytes()


TOOLS = SchemaTools(protobuf_compiler=QuickCompiler())


def parse(format_name: str, definition: Any) -> Schema:
    """Parse a definition given as JSON values, as Protobuf text, or as the body of message M."""
    if format_name == "protobuf":
        text = str(definition)
        if not text.startswith("syntax"):
            text = 'syntax = "proto3"; message M { ' + text
        return load_format(format_name, TOOLS).parse(text.encode())
    return load_format(format_name, TOOLS).parse(orjson.dumps(definition))


def load_cases(format_name: str) -> list[dict[str, Any]]:
    text = (CASES / f"{format_name}.yaml").read_text(encoding="utf-8")
    cases: list[dict[str, Any]] = yaml.safe_load(text)
    return cases
