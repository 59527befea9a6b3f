"""What of a Protobuf message matters to those who compare two of them."""

from typing import Literal, TypeAlias

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto
from msgspec import Struct, field

Cardinality: TypeAlias = Literal["singular", "required", "repeated", "map"]

_KINDS = {
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_FIXED64: "fixed64",
    FieldDescriptor.TYPE_FIXED32: "fixed32",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_GROUP: "group",
    FieldDescriptor.TYPE_MESSAGE: "message",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_ENUM: "enum",
    FieldDescriptor.TYPE_SFIXED32: "sfixed32",
    FieldDescriptor.TYPE_SFIXED64: "sfixed64",
    FieldDescriptor.TYPE_SINT32: "sint32",
    FieldDescriptor.TYPE_SINT64: "sint64",
}


class Enumeration(Struct, eq=False):
    """Numbers and their names, the first if there are several."""

    name: str
    values: dict[int, str]
    closed: bool


class Field(Struct, eq=False):
    """A field by its number."""

    number: int
    name: str
    kind: str
    cardinality: Cardinality
    oneof: str | None
    message: "Message | None" = None
    enumeration: Enumeration | None = None

    def text(self) -> str:
        """Return the field's declaration, roughly as it is written."""
        kind = self.kind
        if self.message is not None and self.cardinality != "map":
            kind = self.message.name
        elif self.enumeration is not None:
            kind = self.enumeration.name
        prefix = "" if self.cardinality == "singular" else f"{self.cardinality} "
        return f"{prefix}{kind} {self.name} = {self.number}"


class Message(Struct, eq=False):
    """Fields, and what must not be used again."""

    name: str
    fields: dict[int, Field] = field(default_factory=dict)
    reserved_numbers: list[tuple[int, int]] = field(default_factory=list)
    """Ranges from the first number to the one behind the last."""
    reserved_names: frozenset[str] = frozenset()

    def reserves(self, number: int) -> bool:
        """Tell whether a number is reserved."""
        return any(first <= number < end for first, end in self.reserved_numbers)


def build_message(descriptor: Descriptor) -> Message:
    """Return the model of a message and of all it refers to."""
    return _Builder().message(descriptor)


class _Builder:
    def __init__(self) -> None:
        self._messages: dict[str, Message] = {}
        self._enumerations: dict[str, Enumeration] = {}

    def message(self, root: Descriptor) -> Message:
        """Build without recursion: messages may refer to each other as they like."""
        pending = [root]
        while pending:
            descriptor = pending.pop()
            model = self._known(descriptor)
            if model.fields:
                continue
            for each in descriptor.fields:
                model.fields[each.number] = self._field(each)
                if each.message_type is not None:
                    inner = self._known(each.message_type)
                    model.fields[each.number].message = inner
                    if not inner.fields:
                        pending.append(each.message_type)
        return self._messages[root.full_name]

    def _known(self, descriptor: Descriptor) -> Message:
        name = descriptor.full_name
        if name not in self._messages:
            proto = DescriptorProto()
            descriptor.CopyToProto(proto)
            self._messages[name] = Message(
                name,
                {},
                [(each.start, each.end) for each in proto.reserved_range],
                frozenset(proto.reserved_name),
            )
        return self._messages[name]

    def _field(self, each: FieldDescriptor) -> Field:
        enumeration = each.enum_type
        return Field(
            each.number,
            each.name,
            _KINDS[each.type],
            _cardinality(each),
            _oneof(each),
            None,
            None if enumeration is None else self._enumeration(enumeration),
        )

    def _enumeration(self, descriptor: EnumDescriptor) -> Enumeration:
        name = descriptor.full_name
        if name not in self._enumerations:
            proto = EnumDescriptorProto()
            descriptor.CopyToProto(proto)
            values: dict[int, str] = {}
            for value in proto.value:
                values.setdefault(value.number, value.name)
            self._enumerations[name] = Enumeration(name, values, bool(descriptor.is_closed))
        return self._enumerations[name]


def has_required(root: Message) -> bool:
    """Tell whether the message, or one within it, has a required field."""
    pending, seen = [root], {id(root)}
    while pending:
        for each in pending.pop().fields.values():
            if each.cardinality == "required":
                return True
            if each.message is not None and id(each.message) not in seen:
                seen.add(id(each.message))
                pending.append(each.message)
    return False


def is_map(each: FieldDescriptor) -> bool:
    """Tell whether a field is a map, which on the wire is a repeated message."""
    message = each.message_type
    return bool(message is not None and message.GetOptions().map_entry)


def _cardinality(each: FieldDescriptor) -> Cardinality:
    if is_map(each):
        return "map"
    if each.is_repeated:
        return "repeated"
    return "required" if each.is_required else "singular"


def _oneof(each: FieldDescriptor) -> str | None:
    """Return the oneof a field is declared in; `optional` is one on paper only."""
    oneof = each.containing_oneof
    if oneof is None or (len(oneof.fields) == 1 and oneof.name == f"_{each.name}"):
        return None
    return str(oneof.name)
