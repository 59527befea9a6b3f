"""Finds kinds of sinks: those built in, and those other packages bring along. Pure.

Both come through the entry point group `pydanube.pipeline_sinks`, whose entries name a `SinkKind`
under the sink's `format`.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from pydanube.errors import InvalidRequest
from pydanube.pipelines.definitions import Sink
from pydanube.pipelines.sinks.kind import SinkKind

ENTRY_POINT_GROUP = "pydanube.pipeline_sinks"


def kind_of(sink: Sink) -> SinkKind:
    """Return the kind of a sink; the definition was checked, so there is one."""
    return _load(sink.format)


def kind_names() -> list[str]:
    """Return the formats of all installed kinds, sorted."""
    return sorted(_installed())


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


@cache
def _load(name: str) -> SinkKind:
    installed = _installed()
    if name not in installed:
        raise InvalidRequest(
            f"a sink of format {name!r} does not exist; there are {', '.join(kind_names())}. If "
            "none is named, install the package again: its metadata is older than its code"
        )
    kind: type[SinkKind] = installed[name].load()
    return kind()
