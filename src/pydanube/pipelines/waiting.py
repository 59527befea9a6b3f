"""Where the sources of a flow stand, and what waits there, as the brokers know it."""

import json
from collections.abc import Mapping

from pydanube.pipelines.flow_files import FlowFiles
from pydanube.pipelines.frames import FlowFrames
from pydanube.pipelines.reports import SourceWaiting
from pydanube.pipelines.sinks.catalog import kind_of
from pydanube.runtime.blocking import environment
from pydanube.spark.brokers import brokers_of
from pydanube.spark.options import DEFAULT_URL, URL_VARIABLE, ReadOptions, read_options
from pydanube.spark.source.batch_reader import ReadRange, resolve_range
from pydanube.spark.source.cursors import position_of
from pydanube.spark.source.offsets import read_offset


def reached_by(files: FlowFiles, frames: FlowFrames) -> dict[str, dict[str, int]]:
    """Return the next offsets by source after the last batch that is done; nothing before it."""
    last = files.last_batch()
    lines = files.offsets_of(last) if last is not None else []
    return {
        name: dict(read_offset(json.loads(line)).next)
        for name, line in zip(frames.flow.streams, lines, strict=False)
    }


def waiting_for(
    frames: FlowFrames,
    reached: Mapping[str, Mapping[str, int]],
    starts: Mapping[str, Mapping[str, int]],
    now_ms: int,
) -> tuple[SourceWaiting, ...]:
    """Return where each followed source goes on: after its last batch, else where it begins."""
    found = []
    for name in frames.flow.streams:
        there = _range_of(frames.options_of(name, starts.get(name)), now_ms)
        start = {
            topic: reached.get(name, {}).get(topic, low)
            for topic, (low, _) in sorted(there.bounds.items())
        }
        rows = {
            topic: max(0, state.frontier - start[topic])
            for topic, state in there.states.items()
            if topic in start
        }
        found.append(
            SourceWaiting(
                source=name,
                start=start,
                rows=sum(rows.values()),
                bytes=sum(count * there.states[topic].row_bytes for topic, count in rows.items()),
            )
        )
    return tuple(found)


def begun_before(frames: FlowFrames, files: FlowFiles, now_ms: int) -> str | None:
    """Return why a flow into a topic should not begin, if its cursors show that it has once.

    A topic does not say whence its rows came: begun anew, they would all be there twice.
    """
    flow = frames.flow
    known = files.query_id() is not None or files.record() is not None
    if known or not kind_of(flow.sink).needs_same_rows(flow.sink):
        return None
    for each in waiting_for(frames, {}, {}, now_ms):
        if flow.sources[each.source].start == "committed":
            continue
        subscription = frames.subscription_of(each.source)
        brokers = brokers_of(_parsed(frames.options_of(each.source), now_ms).access)
        for topic, start in each.start.items():
            cursor = position_of(brokers, topic, subscription)
            if cursor is not None and cursor.position > start:
                return (
                    f"there is no checkpoint {files.checkpoint}, and subscription {subscription} "
                    f"has passed {topic} up to {cursor.position}: the flow has run before, and its "
                    f"rows are in {flow.sink.target}. Bring the checkpoint back, or begin anew "
                    "with `run --new-checkpoint`, which writes them again"
                )
    return None


def begins_and_frontiers(frames: FlowFrames, name: str) -> dict[str, tuple[int, int]]:
    """Return the first offset there is, and the next one there will be, of each partition."""
    options = frames.options_of(name)
    options.pop("startingTimestamp", None)
    return _range_of({**options, "startingOffsets": "earliest"}, 0).bounds


def _range_of(options: Mapping[str, str], now_ms: int) -> ReadRange:
    return resolve_range(_parsed(options, now_ms), ())


def _parsed(options: Mapping[str, str], now_ms: int) -> ReadOptions:
    url = environment(URL_VARIABLE) or DEFAULT_URL
    return read_options(options, streaming=True, now_ms=now_ms, default_url=url)
