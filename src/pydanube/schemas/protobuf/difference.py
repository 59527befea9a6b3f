"""What changed between two Protobuf messages, for people to read."""

from collections.abc import Iterator

from pydanube.schemas.format import Change
from pydanube.schemas.protobuf.model import Enumeration, Field, Message

_CHANGES_MAX = 1_000


def changes(old: Message, new: Message) -> list[Change]:
    """Return the changes from `old` to `new`, message by message."""
    found: list[Change] = []
    if old.name != new.name:
        found.append(Change("", f"payloads are {new.name} instead of {old.name}"))
    places = [("", old, new)]
    seen = {(id(old), id(new))}
    for path, before, after in places:
        for change in _message_changes(path, before, after):
            found.append(change)
            if len(found) == _CHANGES_MAX:
                return found
        for number, each in after.fields.items():
            twin = before.fields.get(number)
            if twin is None or twin.message is None or each.message is None:
                continue
            if (id(twin.message), id(each.message)) not in seen:
                seen.add((id(twin.message), id(each.message)))
                places.append((_below(path, each.name), twin.message, each.message))
    return found


def _message_changes(path: str, old: Message, new: Message) -> Iterator[Change]:
    for number, each in new.fields.items():
        here = _below(path, each.name)
        twin = old.fields.get(number)
        if twin is None:
            yield Change(here, f"field added: {each.text()}")
        else:
            yield from _field_changes(here, twin, each)
    for number, each in old.fields.items():
        if number not in new.fields:
            kept = "number reserved" if new.reserves(number) else "number not reserved"
            yield Change(_below(path, each.name), f"field removed: {each.text()} ({kept})")


def _field_changes(path: str, old: Field, new: Field) -> Iterator[Change]:
    if old.text() != new.text():
        yield Change(path, f"{old.text()} became {new.text()}")
    if old.oneof != new.oneof:
        yield Change(path, f"oneof {old.oneof or 'none'} became {new.oneof or 'none'}")
    if old.enumeration is not None and new.enumeration is not None:
        yield from _enumeration_changes(path, old.enumeration, new.enumeration)


def _enumeration_changes(path: str, old: Enumeration, new: Enumeration) -> Iterator[Change]:
    for number, name in new.values.items():
        if number not in old.values:
            yield Change(path, f"value {name} = {number} added")
        elif old.values[number] != name:
            yield Change(path, f"value {old.values[number]} = {number} renamed to {name}")
    for number, name in old.values.items():
        if number not in new.values:
            yield Change(path, f"value {name} = {number} removed")


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
