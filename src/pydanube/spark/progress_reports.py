"""What Spark's progress reports say of our topics. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydanube.errors import InvalidRequest
from pydanube.spark.source.offsets import read_offset


def offsets_of(
    progress: Mapping[str, Any],
) -> Iterator[tuple[str, dict[str, int], dict[str, int]]]:
    """Yield description, reached and latest offsets of every danube source of a report."""
    for source in progress.get("sources") or ():
        end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if end is not None:
            yield source.get("description") or "", end, latest or end


def total_of(progress: Mapping[str, Any], name: str) -> float:
    """Return a figure of a whole batch; reports of Spark Connect have those of sources alone."""
    if progress.get(name) is not None:
        return float(progress[name])
    return float(sum(source.get(name) or 0 for source in progress.get("sources") or ()))


def lag_of(progress: Mapping[str, Any]) -> dict[tuple[str, ...], int]:
    """Return how many messages each topic is ahead of a query."""
    found: dict[tuple[str, ...], int] = {}
    for _, end, latest in offsets_of(progress):
        for topic, frontier in latest.items():
            found[topic,] = max(0, frontier - end.get(topic, 0))
    return found


def _offset(stored: object) -> dict[str, int] | None:
    """Return the positions of one of our offsets; None for that of another source."""
    if isinstance(stored, str):
        try:
            stored = json.loads(stored)
        except ValueError:
            return None
    if not (isinstance(stored, dict) and "grid" in stored and "next" in stored):
        return None
    try:
        return read_offset(stored).next
    except InvalidRequest:
        return None
