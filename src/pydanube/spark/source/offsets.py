"""Where a stream stands: the JSON that Spark keeps in its checkpoint. Pure.

Spark compares offsets as texts, so equal positions must be equal to the byte: keys in one order,
names sorted. The format is version 1; a later one must still read it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field, structs

from pydanube.errors import InvalidRequest

VERSION = 1


class StreamOffset(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A position in every physical topic of a stream."""

    v: int = VERSION
    grid: int
    """Rows of a task: a power of two; 0 in the offset a stream begins at, which holds no rows."""
    from_: dict[str, int] = field(default_factory=dict, name="from")
    """Where topics begin that enter with this offset; it wins over where Spark says they do."""
    ids: dict[str, str]
    """Of the topics, so that one that was created anew is noticed."""
    next: dict[str, int]
    """The next offset to read."""

    @property
    def is_initial(self) -> bool:
        """Whether the stream has planned nothing yet."""
        return self.grid == 0


def write_offset(offset: StreamOffset) -> dict[str, Any]:
    """Return what Spark stores; the same position gives the same bytes."""
    return {
        "v": offset.v,
        "grid": offset.grid,
        "from": _sorted(offset.from_),
        "ids": _sorted(offset.ids),
        "next": _sorted(offset.next),
    }


def read_offset(stored: Mapping[str, Any]) -> StreamOffset:
    """Read what Spark stored; InvalidRequest if another version wrote it."""
    version = stored.get("v")
    if version != VERSION:
        raise InvalidRequest(
            f"the checkpoint holds offsets of version {version}, this release reads {VERSION}; "
            "run it with the release that wrote it, or begin with a new checkpoint"
        )
    try:
        return msgspec.convert(dict(stored), StreamOffset)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the checkpoint holds offsets that cannot be read: {error}") from None


def initial_offset(starts: Mapping[str, int], ids: Mapping[str, str]) -> StreamOffset:
    """Return where a stream begins."""
    return StreamOffset(grid=0, from_=dict(starts), ids=dict(ids), next=dict(starts))


def without(offset: StreamOffset, topics: set[str]) -> StreamOffset:
    """Forget some topics."""
    return structs.replace(
        offset,
        from_={name: value for name, value in offset.from_.items() if name not in topics},
        ids={name: value for name, value in offset.ids.items() if name not in topics},
        next={name: value for name, value in offset.next.items() if name not in topics},
    )


def _sorted(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in sorted(values)}
