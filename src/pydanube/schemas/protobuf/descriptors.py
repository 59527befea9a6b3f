"""From a Protobuf definition to a message, in a pool that holds nothing else.

Payloads are of the first message of the definition. In a FileDescriptorSet that is the first
message of its last file, since a file stands behind those it imports.
"""

from importlib import import_module

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from pydanube.schemas.bounds import check_size, exceeded
from pydanube.schemas.errors import InvalidSchema, SchemaCompilerUnavailable
from pydanube.schemas.format import ProtobufCompiler
from pydanube.schemas.limits import SchemaLimits

WELL_KNOWN = tuple(
    f"google/protobuf/{name}.proto"
    for name in (
        "any",
        "api",
        "descriptor",
        "duration",
        "empty",
        "field_mask",
        "source_context",
        "struct",
        "timestamp",
        "type",
        "wrappers",
    )
)
_OWN_FILE = "schema.proto"
# A set of a few files holds what their text holds, spelled out.
_SET_BYTES_FACTOR = 4


def load_files(
    definition: bytes, compiler: ProtobufCompiler | None, limits: SchemaLimits
) -> FileDescriptorSet:
    """Return a definition's own files in canonical form, without those everybody has."""
    files = _as_set(definition)
    if files is None:
        check_size(definition, limits)
        files = _compiled(definition, compiler)
    elif len(definition) > limits.definition_bytes_max * _SET_BYTES_FACTOR:
        check_size(definition, limits)
    own = FileDescriptorSet(file=[each for each in files.file if each.name not in WELL_KNOWN])
    if not own.file:
        raise InvalidSchema("the descriptor set has no file of its own")
    for each in own.file:
        each.ClearField("source_code_info")
        _check_imports(each, [other.name for other in own.file])
        _check_file(each, limits)
    if len(own.file) == 1:
        own.file[0].name = _OWN_FILE
    return own


def payload_message(files: FileDescriptorSet) -> Descriptor:
    """Return the message that payloads are; raise InvalidSchema if there is none."""
    pool = DescriptorPool()
    try:
        for name in _imported(files):
            _add_well_known(pool, name)
        for each in files.file:
            pool.AddSerializedFile(each.SerializeToString())
        last = pool.FindFileByName(files.file[-1].name)
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidSchema(f"the Protobuf descriptors do not fit together: {error}") from error
    declared = files.file[-1].message_type
    if not declared:
        raise InvalidSchema("the definition declares no message; payloads are of its first message")
    message: Descriptor = last.message_types_by_name[declared[0].name]
    return message


def _as_set(definition: bytes) -> FileDescriptorSet | None:
    """Return the descriptor set the bytes are, or None if they are text."""
    if not definition.startswith(b"\n"):
        return None
    files = FileDescriptorSet()
    try:
        files.ParseFromString(definition)
    except DecodeError:
        return None
    if not files.file or not all(each.name for each in files.file):
        return None
    return files


def _compiled(definition: bytes, compiler: ProtobufCompiler | None) -> FileDescriptorSet:
    try:
        text = definition.decode()
    except UnicodeDecodeError as error:
        raise InvalidSchema(
            "the definition is neither Protobuf text in UTF-8 nor a FileDescriptorSet"
        ) from error
    if not text.strip():
        raise InvalidSchema("the definition is empty; a Protobuf schema declares a message")
    if compiler is None:
        raise SchemaCompilerUnavailable(
            "Protobuf text cannot be compiled here; give a FileDescriptorSet instead "
            "(protoc --include_imports --descriptor_set_out=FILE)"
        )
    files = FileDescriptorSet()
    files.ParseFromString(compiler.compile(text))
    return files


def _check_imports(file: FileDescriptorProto, own: list[str]) -> None:
    for name in file.dependency:
        if name not in WELL_KNOWN and name not in own:
            raise InvalidSchema(
                f"import {name!r} is neither part of the definition nor one of google/protobuf"
            )


def _imported(files: FileDescriptorSet) -> list[str]:
    return sorted({name for each in files.file for name in each.dependency if name in WELL_KNOWN})


def _add_well_known(pool: DescriptorPool, name: str) -> None:
    module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    for dependency in file.dependency:
        _add_well_known(pool, dependency)
    pool.AddSerializedFile(file.SerializeToString())


def _check_file(file: FileDescriptorProto, limits: SchemaLimits) -> None:
    """Raise if a message or enumeration exceeds a limit."""
    for enumeration in file.enum_type:
        _check_enumeration(enumeration, limits)
    level = list(file.message_type)
    depth = parts = 0
    while level:
        depth += 1
        if depth > limits.depth_max:
            raise exceeded("messages nest too deep", "depth_max", limits)
        for message in level:
            parts += 1 + len(message.field)
            if parts > limits.nodes_max:
                raise exceeded("the definition has too many fields", "nodes_max", limits)
            _check_message(message, limits)
        level = [inner for message in level for inner in message.nested_type]


def _check_message(message: DescriptorProto, limits: SchemaLimits) -> None:
    if len(message.field) > limits.fields_max:
        raise exceeded(
            f"message {message.name} has {len(message.field)} fields", "fields_max", limits
        )
    for enumeration in message.enum_type:
        _check_enumeration(enumeration, limits)
    for name in (message.name, *(each.name for each in message.field)):
        if len(name) > limits.name_chars_max:
            raise exceeded(f"the name {name[:40]!r}… is too long", "name_chars_max", limits)


def _check_enumeration(enumeration: EnumDescriptorProto, limits: SchemaLimits) -> None:
    if len(enumeration.value) > limits.enum_values_max:
        raise exceeded(
            f"enum {enumeration.name} has {len(enumeration.value)} values",
            "enum_values_max",
            limits,
        )
