"""Texts that programs keep with a topic: how many, how long. Pure."""

from collections.abc import Mapping

from pydanube.errors import InvalidRequest

PROPERTIES_MAX = 32
NAME_CHARACTERS_MAX = 128
VALUE_BYTES_MAX = 16 * 1024


def with_property(properties: Mapping[str, str], name: str, value: str | None) -> dict[str, str]:
    """Return properties with one of them set, or taken away."""
    if not name or len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
        raise InvalidRequest(
            f"a property's name must be 1 to {NAME_CHARACTERS_MAX} printable characters"
        )
    changed = {key: text for key, text in properties.items() if key != name}
    if value is None:
        return changed
    if len(value.encode()) > VALUE_BYTES_MAX:
        raise InvalidRequest(f"property {name} has more than {VALUE_BYTES_MAX} bytes")
    if len(changed) >= PROPERTIES_MAX:
        raise InvalidRequest(f"a topic keeps at most {PROPERTIES_MAX} properties")
    return {**changed, name: value}
