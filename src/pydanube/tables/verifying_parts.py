"""A table compared with its topic, part by part: here, or by workers."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, structs

from pydanube.errors import DanubeError
from pydanube.spark.source.planning import Limits, TopicState
from pydanube.spark.source.rows import Place
from pydanube.tables.columns import Columns
from pydanube.tables.crew import InTools, Toolbox, Workers, spread
from pydanube.tables.lake import LakeSnapshot, LakeTable
from pydanube.tables.lake_types import same_shape
from pydanube.tables.messages import raw_rows, sort_messages
from pydanube.tables.ranges import TableTools
from pydanube.tables.state import Positions, Span, plan_spans
from pydanube.tables.verifying import (
    Finding,
    Part,
    PartFindings,
    Verdict,
    check_places,
    conclude,
    ranges_of,
)

PART_ROWS = 4_000_000
"""Of a part whose offsets alone are looked at."""
CONTENT_BYTES = 64 * 1024 * 1024
END = 2**62


class VerifyTask(Struct, frozen=True, kw_only=True):
    """A part, to be looked at."""

    topic: str
    id: str
    part: Part
    may_lack: bool
    content_from: int | None = None
    """Rows from there on are compared with their messages, which the topic still has."""


class Check(Struct, frozen=True, kw_only=True):
    """How closely a table is looked at."""

    starts: Mapping[str, int]
    may_lack: bool
    content: bool = False


def verify(
    table: str,
    positions: Positions,
    topics: Mapping[str, TopicState],
    check: Check,
    workers: Workers,
    toolbox: Toolbox,
) -> Verdict:
    """Compare a table, which is at `positions`, with what its topic says now."""
    tasks = [
        task
        for name in sorted(positions)
        for task in _plan_parts(name, positions, topics.get(name), check)
    ]
    answers = workers.run(InTools(toolbox, verify_part), tasks, PartFindings)
    findings: list[Finding] = []
    expected = 0
    for name, position in sorted(positions.items()):
        parts = [found for task, found in zip(tasks, answers, strict=True) if task.topic == name]
        topic = topics.get(name)
        found = conclude(
            name,
            parts,
            earliest=0 if topic is None else topic.earliest,
            trouble=_trouble(name, positions, topic),
        )
        expected += position.next - check.starts.get(name, 0)
        if found is not None:
            findings.append(found)
    return Verdict(
        table=table,
        rows=sum(each.rows for each in answers),
        dead_letters=sum(each.dead_letters for each in answers),
        expected=expected,
        compared=sum(
            min(task.part.high, task.part.next) - max(task.part.low, task.content_from)
            for task in tasks
            if task.content_from is not None
        ),
        findings=findings,
    )


def verify_part(tools: TableTools, task: VerifyTask) -> PartFindings:
    """Look at one part; done by a worker."""
    place = Place.of(task.topic)
    bounds = {
        "offset": (task.part.low, task.part.high),
        "partition": (place.partition, place.partition + 1),
    }
    main = tools.main.load()
    held = _offsets(main, bounds)
    letters = _offsets(tools.dead.load(), bounds)
    found = check_places(task.part, held, letters, may_lack=task.may_lack)
    if task.content_from is None or main is None:
        return found
    low = max(task.part.low, task.content_from)
    span = Span(task.id, low, min(task.part.high, task.part.next))
    rows = main.scan(main.columns.names, {**bounds, "offset": (span.start, span.end)})
    return structs.replace(found, different=_different(tools, task.topic, span, main, rows))


def _plan_parts(
    name: str, positions: Positions, topic: TopicState | None, check: Check
) -> list[VerifyTask]:
    """Cut what a table has of one partition; the last part has no end."""
    position = positions[name]
    start = check.starts.get(name, 0)
    readable = topic is not None and topic.id == position.id
    rows, content_from = PART_ROWS, None
    if check.content and readable and topic is not None:
        rows = max(1, CONTENT_BYTES // max(1, topic.row_bytes))
        content_from = max(start, topic.earliest)
    edges = list(spread(0, position.next, rows)) or [(0, 0)]
    edges[-1] = (edges[-1][0], END)
    return [
        VerifyTask(
            topic=name,
            id=position.id,
            part=Part(low=low, high=high, start=start, next=position.next),
            may_lack=check.may_lack,
            content_from=content_from
            if content_from is not None and content_from < min(high, position.next)
            else None,
        )
        for low, high in edges
    ]


def _trouble(name: str, positions: Positions, topic: TopicState | None) -> str | None:
    """Tell why a table cannot be continued, if it cannot."""
    if topic is None:
        return f"there is no topic {name} any more"
    try:
        plan_spans({name: positions[name]}, {name: topic}, {}, Limits())
    except DanubeError as error:
        return str(error)
    return None


def _offsets(snapshot: LakeSnapshot | None, bounds: Mapping[str, tuple[int, int]]) -> pa.Array:
    if snapshot is None:
        return pa.array([], pa.int64())
    found = snapshot.scan(["offset"], bounds).column("offset")
    return pa.concat_arrays([pa.array([], pa.int64()), *found.chunks])


def _different(
    tools: TableTools, topic: str, span: Span, main: LakeSnapshot, rows: pa.Table
) -> list[tuple[int, int]]:
    """Return offsets whose rows are not what their messages decode to today."""
    tools.schemas.refresh()
    columns = Columns(main.columns)
    place = Place.of(topic)
    parts = [
        sort_messages(raw_rows(batch, first, place), columns, tools.schemas).rows
        for first, batch in tools.source.read(topic, span)
    ]
    names = [name for name in main.columns.names if name in rows.column_names]
    stored = _comparable(rows.select(names))
    wanted = _comparable(pa.concat_tables(parts, promote_options="default").select(names))
    offsets = stored.column("offset")
    both = wanted.filter(pc.is_in(wanted.column("offset"), offsets.combine_chunks()))
    # A row that is no message's is found among the places; here those of both are compared.
    stored = stored.filter(pc.is_in(offsets, both.column("offset").combine_chunks()))
    if len(stored) == len(both) and stored.equals(both):
        return []
    kept = {row["offset"]: row for row in both.to_pylist()}
    return ranges_of(row["offset"] for row in stored.to_pylist() if row != kept.get(row["offset"]))


def _comparable(rows: pa.Table) -> pa.Table:
    plain = pa.schema([(each.name, same_shape(each.type)) for each in rows.schema])
    return rows.cast(plain).sort_by("offset").combine_chunks()


def size_of(tables: Sequence[LakeTable]) -> int:
    """Return how many bytes tables have."""
    found = [table.load() for table in tables]
    return sum(each.facts().bytes for each in found if each is not None)
