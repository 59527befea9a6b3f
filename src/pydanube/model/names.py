"""Names of topics and namespaces, and the partition naming convention."""

import re

from pydanube.errors import InvalidRequest

NAME_CHARACTERS_MAX = 256

_PARTITION = re.compile(r"(?P<base>.+)-part-(?P<index>0|[1-9][0-9]*)", re.ASCII)


def check_topic_name(name: str) -> str:
    """Return `name` if it has the form /namespace/topic; refuse it otherwise."""
    if not _has_topic_form(name):
        raise InvalidRequest(
            f"topic name {name[:NAME_CHARACTERS_MAX]!r} must have the form /namespace/topic, "
            "with letters, digits, '_' and '-' in both parts"
        )
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidRequest(f"topic name is longer than {NAME_CHARACTERS_MAX} characters")
    return name


def is_topic_name(name: str) -> bool:
    """Tell whether a topic can have that name."""
    return len(name) <= NAME_CHARACTERS_MAX and _has_topic_form(name)


def _has_topic_form(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 3 and not parts[0] and all(_is_name_part(part) for part in parts[1:])


def check_namespace_name(name: str) -> str:
    """Return `name` if it may name a namespace; refuse it otherwise."""
    if not _is_name_part(name) or len(name) > NAME_CHARACTERS_MAX:
        raise InvalidRequest(
            f"namespace {name[:NAME_CHARACTERS_MAX]!r} must consist of letters, digits, '_' and '-'"
        )
    return name


def check_client_name(kind: str, name: str) -> str:
    """Return `name` if it may name a producer, consumer or subscription; refuse it otherwise.

    Stock clients choose these freely, so every printable name passes.
    """
    if not name or len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
        raise InvalidRequest(
            f"{kind} name must be 1 to {NAME_CHARACTERS_MAX} printable characters, "
            f"not {name[:NAME_CHARACTERS_MAX]!r}"
        )
    return name


def namespace_of(topic: str) -> str:
    """Return the namespace of a checked topic name."""
    return topic.split("/", 2)[1]


def partition_name(base: str, index: int) -> str:
    """Return the name of one partition of a partitioned topic."""
    return f"{base}-part-{index}"


def split_partition(topic: str) -> tuple[str, int] | None:
    """Return (base, index) if the name is a partition's; `X-part-7` is, `X-part-07` is not."""
    match = _PARTITION.fullmatch(topic)
    return (match["base"], int(match["index"])) if match else None


def _is_name_part(part: str) -> bool:
    return bool(part) and all(c.isalnum() or c in "_-" for c in part)
