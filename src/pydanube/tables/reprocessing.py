"""Dead letters tried again, by the schemas of today.

What fits now is added to the table first, unless it is there, and then taken from the dead letters.
Whatever happens between the two, running it again ends it: a message is never lost, and in the
table once. Into a table with a key goes only what no later message of its key has overtaken.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.errors import Conflict
from pydanube.spark.source.rows import Place
from pydanube.tables.columns import DEAD_LETTERS, Columns
from pydanube.tables.conditions import condition_of
from pydanube.tables.crew import Toolbox, Workers
from pydanube.tables.exporting_pieces import WrittenPiece, discard, do_pieces
from pydanube.tables.lake import Commit, LakeSnapshot, LakeTable, Run
from pydanube.tables.messages import RAW, sort_messages
from pydanube.tables.overtaking import keyed_changes
from pydanube.tables.ranges import TableTools

LETTERS_AT_ONCE = 10_000
RUNS_AT_ONCE = 1_000
LOST_RACES_MAX = 100

_PLACE = ("partition", "offset")


class Reprocessed(Struct, frozen=True, kw_only=True):
    """What became of dead letters."""

    table: str
    tried: int
    added: int
    """Rows the table got; others that fit were there."""
    overtaken: int = 0
    """Of a table with a key: letters that a later message of their key makes worthless."""
    left: int
    """Dead letters that were tried and still do not fit."""


class LettersTask(Struct, frozen=True, kw_only=True):
    """Dead letters of one partition, to be tried again."""

    name: str
    letters: Run
    where: str
    columns: bytes


def reprocess(
    toolbox: Toolbox,
    workers: Workers,
    *,
    key: Sequence[str] = (),
    where: str = "",
    dry_run: bool = False,
) -> Reprocessed:
    """Bring dead letters that fit by now into the table. Conflict: others were faster.

    `dry_run` tells what would become of them, and changes nothing.
    """
    condition_of(where)  # What makes no sense is refused before anything is done.
    with toolbox.open() as tools:
        groups = _groups(tools)
        # A table with a key takes a commit per group, each on top of the one before.
        steps = [[each] for each in groups] if key else [groups] if groups else []
        done = [
            _try_again(tools, toolbox, workers, each, tuple(key), where, dry_run=dry_run)
            for each in steps
        ]
        return Reprocessed(
            table=tools.main.name,
            tried=sum(each.tried for each in done),
            added=sum(each.added for each in done),
            overtaken=sum(each.overtaken for each in done),
            left=sum(each.left for each in done),
        )


def _try_again(
    tools: TableTools,
    toolbox: Toolbox,
    workers: Workers,
    groups: Sequence[Run],
    key: tuple[str, ...],
    where: str,
    *,
    dry_run: bool,
) -> Reprocessed:
    for _ in range(LOST_RACES_MAX):
        main = tools.main.load()
        if main is None:
            return Reprocessed(table=tools.main.name, tried=0, added=0, left=0)
        if key:
            found = _commit_keyed(tools, main, groups[0], key, where, dry_run=dry_run)
        else:
            found = _commit_rows(tools, toolbox, workers, main, groups, where, dry_run=dry_run)
        if found is not None:
            if not dry_run:
                _take_out(tools.dead, found[1])
            return found[0]
    raise Conflict(f"table {tools.main.name}: other commits came too fast; run it again")


def _commit_rows(
    tools: TableTools,
    toolbox: Toolbox,
    workers: Workers,
    main: LakeSnapshot,
    groups: Sequence[Run],
    where: str,
    *,
    dry_run: bool,
) -> tuple[Reprocessed, list[Run]] | None:
    """Add what fits, in one commit; None: somebody else was faster."""
    columns = Columns(main.columns)
    text = columns.schema.serialize().to_pybytes()
    commit_id = f"{tools.randomness.below(2**128):032x}"
    tasks = [
        LettersTask(
            name=f"{commit_id}-again-{number:05d}", letters=letters, where=where, columns=text
        )
        for number, letters in enumerate(groups)
    ]
    pieces, given_up = do_pieces(workers, toolbox, try_letters, tasks, columns)
    discard(tools, given_up)
    rows = sum(each.rows for each in pieces)
    commit = Commit(
        id=commit_id,
        positions=main.positions,
        added=columns.added,
        files=[each for piece in pieces for each in piece.files],
        summary={"danube.reprocessed": str(rows)},
    )
    if dry_run:
        discard(tools, pieces)
    elif rows and not main.commit(commit):
        discard(tools, pieces)
        return None
    tried, left = sum(each.bytes for each in pieces), sum(each.dead for each in pieces)
    done = Reprocessed(table=tools.main.name, tried=tried, added=rows, left=left)
    return done, [run for piece in pieces for run in piece.runs]


def try_letters(tools: TableTools, task: LettersTask) -> WrittenPiece:
    """Write the letters that fit and are not in the table; done by a worker."""
    main, dead = tools.main.load(), tools.dead.load()
    assert main is not None, f"table {tools.main.name} is gone"
    letters, others = _letters(dead, task.letters, task.where)
    columns = Columns(pa.ipc.read_schema(pa.py_buffer(task.columns)))
    tools.schemas.refresh()
    good = sort_messages(letters, columns, tools.schemas).rows
    fresh = _absent(good, main) if len(good) else good
    name = f"{task.name}-{tools.randomness.below(2**32):08x}"
    return WrittenPiece(
        files=main.write(name, fresh) if len(fresh) else [],
        columns=columns.added.serialize().to_pybytes(),
        rows=len(fresh),
        bytes=len(letters),
        dead=len(letters) - len(good),
        runs=_runs(task.letters.partition, letters, others, good.column("offset").to_pylist()),
    )


def _commit_keyed(
    tools: TableTools,
    main: LakeSnapshot,
    group: Run,
    key: tuple[str, ...],
    where: str,
    *,
    dry_run: bool,
) -> tuple[Reprocessed, list[Run]] | None:
    letters, others = _letters(tools.dead.load(), group, where)
    tools.schemas.refresh()
    columns = Columns(main.columns)
    found = keyed_changes(tools, main, letters, columns, key)
    if len(found.upsert.rows) and not dry_run:
        commit = Commit(
            id=f"{tools.randomness.below(2**128):032x}",
            positions=main.positions,
            added=columns.added,
            upsert=found.upsert,
            summary={"danube.reprocessed": str(len(found.upsert.rows))},
        )
        if not main.commit(commit):
            return None
    done = Reprocessed(
        table=tools.main.name,
        tried=len(letters),
        added=len(found.upsert.rows),
        overtaken=len(found.overtaken),
        left=len(letters) - len(found.overtaken) - len(found.upsert.rows),
    )
    settled = [*found.overtaken, *found.upsert.rows.column("offset").to_pylist()]
    return done, _runs(group.partition, letters, others, settled)


def _groups(tools: TableTools) -> list[Run]:
    """Cut dead letters into runs of a size that one task can hold.

    Those ahead of the table are left alone: an exporter is about to pass them, and would add them
    a second time.
    """
    dead, main = tools.dead.load(), tools.main.load()
    if dead is None or main is None:
        return []
    places = dead.scan(list(_PLACE), {})
    groups = []
    for name, position in sorted(main.positions.items()):
        partition = Place.of(name).partition
        chosen = places.filter(pc.equal(places.column("partition"), partition))
        offsets = sorted(
            each for each in chosen.column("offset").to_pylist() if each < position.next
        )
        for at in range(0, len(offsets), LETTERS_AT_ONCE):
            part = offsets[at : at + LETTERS_AT_ONCE]
            groups.append(Run(partition, part[0], part[-1]))
    return groups


def _letters(dead: LakeSnapshot | None, run: Run, where: str) -> tuple[pa.Table, list[int]]:
    """Return letters that meet a condition, and the offsets of those that do not."""
    if dead is None:
        return RAW.empty_table(), []
    bounds = {
        "offset": (run.first, run.last + 1),
        "partition": (run.partition, run.partition + 1),
    }
    found = dead.scan(DEAD_LETTERS.names, bounds).cast(DEAD_LETTERS).sort_by("offset")
    condition = condition_of(where)
    chosen = found if condition is None else found.filter(condition)
    others = set(found.column("offset").to_pylist()) - set(chosen.column("offset").to_pylist())
    return chosen.select(RAW.names).cast(RAW).combine_chunks(), sorted(others)


def _runs(
    partition: int, letters: pa.Table, others: Sequence[int], settled: Sequence[int]
) -> list[Run]:
    """Return runs that hold all settled letters, and none that stays."""
    gone = set(settled)
    runs: list[Run] = []
    last_stays = True
    for offset in sorted([*letters.column("offset").to_pylist(), *others]):
        if offset not in gone:
            last_stays = True
        elif last_stays:
            runs.append(Run(partition, offset, offset))
            last_stays = False
        else:
            runs[-1] = Run(partition, runs[-1].first, offset)
    return runs


def _take_out(table: LakeTable, runs: Sequence[Run]) -> None:
    """Delete settled letters; what they were is in the table."""
    for part in _cut(runs):
        for _ in range(LOST_RACES_MAX):
            dead = table.load()
            if dead is None or dead.remove(part):
                break
        else:
            raise Conflict(f"table {table.name}: other commits came too fast; run it again")


def _cut(runs: Sequence[Run]) -> Iterator[Sequence[Run]]:
    for at in range(0, len(runs), RUNS_AT_ONCE):
        yield runs[at : at + RUNS_AT_ONCE]


def _absent(good: pa.Table, main: LakeSnapshot) -> pa.Table:
    """Return the rows that a table does not have; all are of one partition."""
    bounds = pc.min_max(good.column("offset")).as_py()
    partition = good.column("partition")[0].as_py()
    there = main.scan(
        ["offset"],
        {
            "offset": (bounds["min"], bounds["max"] + 1),
            "partition": (partition, partition + 1),
        },
    )
    known = pa.concat_arrays([pa.array([], pa.int64()), *there.column("offset").chunks])
    return good.filter(pc.invert(pc.is_in(good.column("offset"), known)))
