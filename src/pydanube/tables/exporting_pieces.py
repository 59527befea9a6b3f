"""A large range, written by workers in pieces and committed as one.

Pieces are decoded apart from each other, so two of them may bring a column of the same name and
different types. Whoever gathers them lets the first piece by topic and offset have its way, as if
one had read them in order, and has the others done again with the columns that are fixed by then.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
from msgspec import Struct, structs

from pydanube.tables.columns import Columns
from pydanube.tables.crew import Crew, InTools, Toolbox, Workers, spread
from pydanube.tables.errors import BadMessage
from pydanube.tables.export_rules import ExportRules
from pydanube.tables.lake import DataFile, Run
from pydanube.tables.ranges import RangeWriter, TableTools
from pydanube.tables.state import Span


class PieceTask(Struct, frozen=True, kw_only=True):
    """What one worker is to write."""

    name: str
    """Of its files."""
    topic: str
    """A physical one."""
    span: Span
    columns: bytes
    """Of the table, a schema of Arrow's."""
    rules: ExportRules


ColumnsTask = TypeVar("ColumnsTask", bound=Struct)
"""A task with a field `columns`."""


class WrittenPiece(Struct, frozen=True, kw_only=True):
    """What one worker has written; it is in no commit yet."""

    files: list[DataFile] = []
    dead_files: list[DataFile] = []
    columns: bytes = b""
    """All that its rows have, those that the table lacks among them."""
    rows: int = 0
    bytes: int = 0
    dead: int = 0
    skipped: int = 0
    runs: list[Run] = []
    """Of dead letters that are tried again: those that are dead no longer."""
    refused: str | None = None
    """The message that does not fit a table that is set to fail then."""


class WrittenRange(Struct, frozen=True, kw_only=True):
    """What all workers have written."""

    files: list[DataFile]
    dead_files: list[DataFile]
    rows: int
    bytes: int
    dead: int
    skipped: int


def plan_tasks(
    crew: Crew,
    rules: ExportRules,
    spans: Mapping[str, Span],
    row_bytes: Mapping[str, int],
    columns: Columns,
    name: str,
) -> list[PieceTask]:
    """Cut spans into pieces of about the same size, in the order of topic and offset. Pure."""
    text = columns.schema.serialize().to_pybytes()
    pieces = [
        (topic, Span(span.id, low, high))
        for topic, span in sorted(spans.items())
        for low, high in spread(span.start, span.end, crew.task_bytes // max(1, row_bytes[topic]))
    ]
    return [
        PieceTask(name=f"{name}-{number:05d}", topic=topic, span=span, columns=text, rules=rules)
        for number, (topic, span) in enumerate(pieces)
    ]


def write_pieces(
    crew: Crew, toolbox: Toolbox, tasks: Sequence[PieceTask], columns: Columns
) -> WrittenRange:
    """Have pieces written; `columns` grows by what their rows have.

    BadMessage: one of them does not fit, the table is set to fail then, and no file is left.
    """
    pieces, given_up = do_pieces(crew.workers, toolbox, write_piece, tasks, columns)
    refused = next((each.refused for each in pieces if each.refused is not None), None)
    if refused is not None:
        given_up += pieces
    if given_up:
        with toolbox.open() as tools:
            discard(tools, given_up)
    if refused is not None:
        raise BadMessage(refused)
    return WrittenRange(
        files=[each for piece in pieces for each in piece.files],
        dead_files=[each for piece in pieces for each in piece.dead_files],
        rows=sum(each.rows for each in pieces),
        bytes=sum(each.bytes for each in pieces),
        dead=sum(each.dead for each in pieces),
        skipped=sum(each.skipped for each in pieces),
    )


def do_pieces(
    workers: Workers,
    toolbox: Toolbox,
    work: Callable[[TableTools, ColumnsTask], WrittenPiece],
    tasks: Sequence[ColumnsTask],
    columns: Columns,
) -> tuple[list[WrittenPiece], list[WrittenPiece]]:
    """Have tasks done that write rows; return their pieces, and those that cannot be used.

    `columns` grows by what the rows have. The first task that brings a column decides its type.
    """
    done: dict[int, WrittenPiece] = {}
    given_up: list[WrittenPiece] = []
    waiting = list(enumerate(tasks))
    while waiting:
        given = [task for _, task in waiting]
        answers = workers.run(InTools(toolbox, work), given, WrittenPiece)
        again = []
        for (number, task), piece in zip(waiting, answers, strict=True):
            if _admitted(piece, columns):
                done[number] = piece
            else:
                given_up.append(piece)
                again.append((number, task))
        fixed = columns.schema.serialize().to_pybytes()
        waiting = [(number, structs.replace(task, columns=fixed)) for number, task in again]
    return [done[number] for number in sorted(done)], given_up


def discard(tools: TableTools, pieces: Sequence[WrittenPiece | WrittenRange]) -> None:
    """Delete the files of pieces that are in no commit."""
    main, dead = tools.main.load(), tools.dead.load()
    for piece in pieces:
        if main is not None:
            main.delete(piece.files)
        if dead is not None:
            dead.delete(piece.dead_files)


def _admitted(piece: WrittenPiece, columns: Columns) -> bool:
    """Make room for what a piece brought; False: a column of it is there with another type."""
    if not piece.columns:
        return True
    brought = pa.ipc.read_schema(pa.py_buffer(piece.columns))
    return all([columns.admit(each.name, each.type) is None for each in brought])


def write_piece(tools: TableTools, task: PieceTask) -> WrittenPiece:
    """Write one piece; done by a worker. Files have names of this attempt alone."""
    main = tools.main.load()
    assert main is not None, f"table {tools.main.name} is gone"
    tools.schemas.refresh()
    columns = Columns(pa.ipc.read_schema(pa.py_buffer(task.columns)))
    name = f"{task.name}-{tools.randomness.below(2**32):08x}"
    writer = RangeWriter(tools, task.rules, main, {task.topic: task.span}, columns, name)
    try:
        dead = writer.write()
    except BadMessage as error:
        main.delete(writer.files)
        return WrittenPiece(refused=str(error))
    dead_files: list[DataFile] = []
    if len(dead):
        letters = tools.dead.load()
        assert letters is not None, f"table {tools.dead.name} is gone"
        dead_files = letters.write(f"{name}-dead", dead)
    return WrittenPiece(
        files=writer.files,
        dead_files=dead_files,
        columns=columns.added.serialize().to_pybytes(),
        rows=writer.rows,
        bytes=writer.bytes,
        dead=len(dead),
        skipped=writer.skipped,
    )
