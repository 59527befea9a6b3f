"""Whether one Protobuf message can be read as another."""

from pydanube.schemas.format import Incompatibility
from pydanube.schemas.protobuf.model import Enumeration, Field, Message

FAULTS_MAX = 100

WIDENING = {
    "bool": ("int32", "int64", "uint32", "uint64"),
    "int32": ("int64",),
    "uint32": ("uint64", "int64"),
    "sint32": ("sint64",),
    "enum": ("int32", "int64"),
    "string": ("bytes",),
    "message": ("bytes",),
}
"""Types whose every value reads as the same value of the other type."""


def read_faults(writer: Message, reader: Message) -> list[Incompatibility]:
    """Return why bytes of the writer's message cannot be read as the reader's."""
    faults: list[Incompatibility] = []
    if writer.name != reader.name:
        faults.append(
            Incompatibility(
                "",
                "message_changed",
                f"payloads are {writer.name}",
                f"payloads are {reader.name}, the first message of the definition",
            )
        )
    for path, written, read in _pairs(writer, reader):
        faults += _message_faults(path, written, read)
        if len(faults) >= FAULTS_MAX:
            break
    return faults[:FAULTS_MAX]


def evolution_faults(old: Message, new: Message) -> list[Incompatibility]:
    """Return what would let a number or name come to mean something else."""
    faults: list[Incompatibility] = []
    for path, before, after in _pairs(old, new):
        faults += _reservation_faults(path, before, after)
        for number, each in before.fields.items():
            faults += _removal_faults(_below(path, each.name), number, each, after)
        if len(faults) >= FAULTS_MAX:
            break
    return faults[:FAULTS_MAX]


def _pairs(first: Message, second: Message) -> list[tuple[str, Message, Message]]:
    """Return the messages that stand in the same place on both sides, each pair once."""
    found = [("", first, second)]
    seen = {(id(first), id(second))}
    for path, one, other in found:
        for number, each in one.fields.items():
            twin = other.fields.get(number)
            if twin is None or each.message is None or twin.message is None:
                continue
            pair = id(each.message), id(twin.message)
            if pair not in seen:
                seen.add(pair)
                found.append((_below(path, each.name), each.message, twin.message))
    return found


def _message_faults(path: str, writer: Message, reader: Message) -> list[Incompatibility]:
    faults = _oneof_faults(path, writer, reader)
    for number, read in reader.fields.items():
        written = writer.fields.get(number)
        here = _below(path, read.name)
        if written is not None:
            faults += _field_faults(here, written, read)
        elif read.cardinality == "required":
            faults.append(
                Incompatibility(here, "required_field_added", "no such field", read.text())
            )
    for number, written in writer.fields.items():
        if written.cardinality == "required" and number not in reader.fields:
            here = _below(path, written.name)
            faults.append(
                Incompatibility(here, "required_field_removed", written.text(), "no such field")
            )
    return faults


def _field_faults(path: str, writer: Field, reader: Field) -> list[Incompatibility]:
    if writer.cardinality != reader.cardinality:
        required = "required" in (writer.cardinality, reader.cardinality)
        rule = "required_changed" if required else "cardinality_changed"
        return [Incompatibility(path, rule, writer.text(), reader.text())]
    if writer.kind != reader.kind:
        widens = reader.kind in WIDENING.get(writer.kind, ())
        if widens and writer.cardinality != "map":
            return []
        return [Incompatibility(path, "field_type_changed", writer.text(), reader.text())]
    if writer.enumeration is not None and reader.enumeration is not None:
        return _enumeration_faults(path, writer.enumeration, reader.enumeration)
    return []


def _enumeration_faults(
    path: str, writer: Enumeration, reader: Enumeration
) -> list[Incompatibility]:
    """An open enumeration keeps numbers it does not know; a closed one reads as its default."""
    if not reader.closed:
        return []
    return [
        Incompatibility(path, "enum_value_unknown", f"{name} = {number}", "no such value")
        for number, name in writer.values.items()
        if number not in reader.values
    ]


def _oneof_faults(path: str, writer: Message, reader: Message) -> list[Incompatibility]:
    """Fields a writer may set together must not exclude each other for the reader."""
    members: dict[str, list[Field]] = {}
    for number, read in reader.fields.items():
        if read.oneof is not None and number in writer.fields:
            members.setdefault(read.oneof, []).append(writer.fields[number])
    faults: list[Incompatibility] = []
    for oneof, written in members.items():
        groups = {each.oneof for each in written}
        if len(written) > 1 and (len(groups) > 1 or None in groups):
            names = ", ".join(each.name for each in written)
            faults.append(
                Incompatibility(
                    _below(path, oneof),
                    "oneof_changed",
                    f"{names} may be set together",
                    f"oneof {oneof} keeps only the last of them",
                )
            )
    return faults


def _removal_faults(path: str, number: int, old: Field, new: Message) -> list[Incompatibility]:
    kept = new.fields.get(number)
    if kept is not None:
        faults = _value_faults(path, old, kept)
        if kept.name != old.name:
            faults.append(Incompatibility(path, "field_renamed", old.text(), kept.text()))
        return faults
    if not new.reserves(number):
        return [
            Incompatibility(
                path, "number_not_reserved", old.text(), f"{number} is free to be used again"
            )
        ]
    if old.name not in new.reserved_names:
        return [
            Incompatibility(
                path, "name_not_reserved", old.text(), f"{old.name} is free to be used again"
            )
        ]
    return []


def _value_faults(path: str, old: Field, new: Field) -> list[Incompatibility]:
    if old.enumeration is None or new.enumeration is None:
        return []
    values = new.enumeration.values
    faults: list[Incompatibility] = []
    for number, name in old.enumeration.values.items():
        before = f"{name} = {number}"
        if number not in values:
            faults.append(Incompatibility(path, "enum_value_removed", before, "no such value"))
        elif values[number] != name:
            after = f"{values[number]} = {number}"
            faults.append(Incompatibility(path, "enum_value_renamed", before, after))
    return faults


def _reservation_faults(path: str, old: Message, new: Message) -> list[Incompatibility]:
    faults: list[Incompatibility] = []
    for first, end in old.reserved_numbers:
        if not _covers(new.reserved_numbers, first, end):
            faults.append(
                Incompatibility(
                    path,
                    "reservation_removed",
                    f"reserved {first} to {end - 1}",
                    "not reserved any more",
                )
            )
    for name in sorted(old.reserved_names - new.reserved_names):
        faults.append(
            Incompatibility(
                path, "reservation_removed", f'reserved "{name}"', "not reserved any more"
            )
        )
    return faults


def _covers(ranges: list[tuple[int, int]], first: int, end: int) -> bool:
    """Tell whether ranges together hold every number from `first` to before `end`."""
    for start, stop in sorted(ranges):
        if start <= first < stop:
            first = stop
    return first >= end


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
