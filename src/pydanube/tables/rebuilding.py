"""A table made anew from its topic, under its name: the old one stays until the new one is whole.

Everything the topic has is decoded by the schemas of today and written beside the table; one
commit then puts it in the place of all rows, with columns and positions of its own. Exporters may
go on meanwhile: what they add to the old rows goes with them, and is added again behind the new.

Dead letters of the new rows are set aside before that commit, and those that are dead no longer are
taken out after it. So a message may be in both for a while, or stay so if this is killed between;
it is never in neither, and doing it again mends it.
"""

from collections.abc import Mapping

import pyarrow as pa
from msgspec import Struct

from pydanube.errors import Conflict, NotSupported, Unavailable
from pydanube.spark.source.planning import Limits
from pydanube.spark.source.rows import Place
from pydanube.tables.columns import DEAD_LETTERS, Columns
from pydanube.tables.export_rules import ExportRules
from pydanube.tables.lake import Commit, DataFile, LakeSnapshot, Run
from pydanube.tables.ranges import RangeWriter, TableTools
from pydanube.tables.state import Span, advanced, plan_spans

KEYED_BYTES_MAX = 1024**3
LOST_RACES_MAX = 100
RUNS_AT_ONCE = 1_000

_PLACE = ("partition", "offset")


class Rebuilt(Struct, frozen=True, kw_only=True):
    """What a table was made anew of."""

    table: str
    messages: int
    rows: int
    dead_letters: int
    dry_run: bool = False
    """Whether nothing was changed: this is what it would be."""
    columns: list[str] = []
    """Those it has now, by the schemas of today."""
    changes: list[str] = []
    """What of the table's setting is another now."""


def rebuild(tools: TableTools, rules: ExportRules, *, dry_run: bool = False) -> Rebuilt:
    """Make a table anew. NotSupported: it cannot be, under its name; nothing was changed.

    `dry_run` decodes everything and tells what the table would be; it leaves no file.
    """
    topics = tools.source.states()
    spans = plan_spans({}, topics, rules.starts, Limits())
    size = sum(span.rows * topics[name].row_bytes for name, span in spans.items())
    if rules.upsert_key and size > KEYED_BYTES_MAX:
        raise NotSupported(
            f"a table with a key is made anew in memory, and {size} bytes are too many: enable it "
            "with another table (--table), and drop this one"
        )
    tools.schemas.refresh()
    columns = Columns(tools.schemas.columns())
    blank = _blank(tools, columns.schema)
    job = f"{tools.randomness.below(2**128):032x}"
    writer = RangeWriter(tools, rules, blank, spans, columns, job, again=True)
    try:
        dead = writer.write()
        if writer.upsert is not None:
            rows = writer.upsert.reduced(columns).rows
            writer.rows = len(rows)
            writer.files += blank.write(job, rows) if len(rows) else []
        if not dry_run:
            _set_aside(tools, spans, dead, job)
    except BaseException:
        blank.delete(writer.files)
        raise
    if dry_run:
        blank.delete(writer.files)
    else:
        _swap(tools, spans, columns, writer.files, job)
        _take_out(tools, spans, dead)
    return Rebuilt(
        table=tools.main.name,
        messages=sum(span.rows for span in spans.values()),
        rows=writer.rows,
        dead_letters=len(dead),
        dry_run=dry_run,
    )


def _blank(tools: TableTools, columns: pa.Schema) -> LakeSnapshot:
    blank = tools.main.blank(columns)
    if blank is None:
        raise Conflict(
            f"there is no table {tools.main.name} to make anew; danube table backfill makes it"
        )
    return blank


def _swap(
    tools: TableTools, spans: Mapping[str, Span], columns: Columns, files: list[DataFile], job: str
) -> None:
    """Put files in the place of everything the table has."""
    commit = Commit(
        id=job,
        positions=advanced({}, spans),
        added=pa.schema([]),
        files=files,
        summary={"danube.commit": job, "danube.upkeep": "rebuilt"},
    )
    for _ in range(LOST_RACES_MAX):
        blank = _blank(tools, columns.schema)
        if blank.commit(commit):
            return
    blank.delete(files)
    raise Unavailable(
        f"table {tools.main.name}: {LOST_RACES_MAX} commits in a row lost their race; nothing was "
        "changed, run it again"
    )


def _set_aside(tools: TableTools, spans: Mapping[str, Span], dead: pa.Table, job: str) -> None:
    """Add dead letters that are not kept yet."""
    if not len(dead):
        return
    for attempt in range(LOST_RACES_MAX):
        snapshot = tools.dead.load()
        if snapshot is None:
            tools.dead.create(DEAD_LETTERS)
            continue
        known = _places(snapshot)
        fresh = dead.filter(pa.array([place not in known for place in _listed(dead)], pa.bool_()))
        if not len(fresh):
            return
        commit = Commit(
            id=f"{job}-{attempt}",
            positions=advanced(snapshot.positions, spans),
            added=pa.schema([]),
            files=snapshot.write(f"{job}-{attempt}-dead", fresh),
            summary={"danube.commit": job},
        )
        if snapshot.commit(commit):
            return
        snapshot.delete(commit.files)
    raise Unavailable(f"table {tools.dead.name}: other commits came too fast; run it again")


def _take_out(tools: TableTools, spans: Mapping[str, Span], dead: pa.Table) -> None:
    """Remove the letters of the range that are dead no longer."""
    still = set(_listed(dead))
    ends = {Place.of(name).partition: span.end for name, span in spans.items()}
    lost = 0
    while lost < LOST_RACES_MAX:
        snapshot = tools.dead.load()
        if snapshot is None:
            return
        gone = sorted(
            place
            for place in _places(snapshot)
            if place not in still and place[1] < ends.get(place[0], 0)
        )
        if not gone:
            return
        runs = [Run(partition, at, at) for partition, at in gone[:RUNS_AT_ONCE]]
        lost = 0 if snapshot.remove(runs) else lost + 1
    raise Unavailable(f"table {tools.dead.name}: other commits came too fast; run it again")


def _places(snapshot: LakeSnapshot) -> set[tuple[int, int]]:
    return set(_listed(snapshot.scan(list(_PLACE), {})))


def _listed(rows: pa.Table) -> list[tuple[int, int]]:
    return list(zip(*(rows.column(name).to_pylist() for name in _PLACE), strict=True))
