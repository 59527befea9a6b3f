"""What a flow's checkpoint depends on, and which changes it survives. Pure.

Spark numbers sources and keeps state by keys: going on with others from the same checkpoint would
mix them up. Filters, projections, triggers, limits and Python code may change freely.
"""

import hashlib
import re

import msgspec
from msgspec import Struct

from pydanube.pipelines.graph import Flow

_GROUP_BY = re.compile(r"\bgroup\s+by\b", re.IGNORECASE)
_END = re.compile(r"[();]|\b(?:having|order|limit|union)\b", re.IGNORECASE)


class SourceIdentity(Struct, frozen=True, kw_only=True):
    """What names a followed source."""

    name: str
    reads: str
    watermark: str | None = None


class FlowIdentity(Struct, frozen=True, kw_only=True):
    """What must stay as long as a checkpoint is used."""

    sources: tuple[SourceIdentity, ...]
    keys: tuple[str, ...] = ()
    """Of grouping, dedupe and state, per step."""
    shuffle_partitions: int | None = None
    """In flows that keep state."""

    @property
    def hash(self) -> str:
        """Return a short name of all this."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def identity_of(flow: Flow, shuffle_partitions: int | None) -> FlowIdentity:
    """Return what a flow's checkpoint depends on; no partitions if the flow keeps no state."""
    sources = []
    for name in flow.streams:
        source = flow.sources[name]
        sources.append(
            SourceIdentity(
                name=name,
                reads=",".join(source.selection.values()),
                watermark=source.watermark.column if source.watermark else None,
            )
        )
    keys = []
    for step in flow.steps:
        if step.dedupe is not None:
            keys.append(f"{step.name}: dedupe {', '.join(step.dedupe.keys)}")
        if step.state is not None:
            keys.append(f"{step.name}: state by {', '.join(step.state.keys)}")
        keys += [f"{step.name}: group by {each}" for each in _groupings(step.sql or "")]
    return FlowIdentity(
        sources=tuple(sources), keys=tuple(keys), shuffle_partitions=shuffle_partitions
    )


def _groupings(sql: str) -> list[str]:
    """Return the text of each GROUP BY, up to its clause's end; brackets of calls belong to it."""
    found = []
    for match in _GROUP_BY.finditer(sql):
        depth, end = 0, len(sql)
        for mark in _END.finditer(sql, match.end()):
            if mark[0] == "(":
                depth += 1
            elif mark[0] == ")" and depth:
                depth -= 1
            elif not depth:
                end = mark.start()
                break
        found.append(" ".join(sql[match.end() : end].split()).lower())
    return found


def changes(before: FlowIdentity, after: FlowIdentity) -> list[str]:
    """Return, in words, what changed that a checkpoint does not survive."""
    found = []
    names = [each.reads for each in before.sources], [each.reads for each in after.sources]
    if names[0] != names[1]:
        found.append(f"the sources were {_list(names[0])} and are {_list(names[1])}")
    else:
        for old, new in zip(before.sources, after.sources, strict=True):
            if old.watermark is not None and new.watermark != old.watermark:
                found.append(f"the watermark of {new.name} was by {old.watermark}")
    if before.keys != after.keys:
        found.append(f"the keys were {_list(before.keys)} and are {_list(after.keys)}")
    if None not in (before.shuffle_partitions, after.shuffle_partitions) and (
        before.shuffle_partitions != after.shuffle_partitions
    ):
        found.append(
            f"spark.sql.shuffle.partitions was {before.shuffle_partitions} and is "
            f"{after.shuffle_partitions}, and the flow keeps state by it"
        )
    return found


def _list(items: list[str] | tuple[str, ...]) -> str:
    return ", ".join(items) or "none"
