"""What a task does: read the rows of its piece, from segments or through a broker.

The rows of a piece never depend on where they are read. When a segment has been replaced or a
broker is gone, the rest of the same range is looked for elsewhere.
"""

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from msgspec import Struct

from pydanube.errors import Corruption, DanubeError, InvalidRequest, NotFound, Unavailable
from pydanube.spark.brokers import Brokers, brokers_of
from pydanube.spark.errors import DataLoss
from pydanube.spark.options import ReadOptions, Selection
from pydanube.spark.registry import ReaderSchema, writer_schema
from pydanube.spark.source.conditions import (
    ANY_TIME,
    Condition,
    TimeBounds,
    expression_of,
    time_bounds,
)
from pydanube.spark.source.decoding import PayloadDecoder, fit
from pydanube.spark.source.planning import Piece
from pydanube.spark.source.rows import (
    DECODED_COLUMNS,
    Place,
    gather,
    stored_columns,
    to_rows,
)
from pydanube.spark.source.segment_files import SegmentFiles
from pydanube.spark.source.topics import Topics
from pydanube.spark.workers import keep_what_is_loaded
from pydanube.storage.config import Durable
from pydanube.wire.flight.blocking import Plan
from pydanube.wire.flight.descriptors import Ticket

_log = logging.getLogger("pydanube.spark")

Stored = Iterator[tuple[int, pa.RecordBatch]]


class SegmentHint(Struct, frozen=True):
    """A segment that held some of a piece when it was planned."""

    key: str
    start: int
    end: int


class PieceTask(Struct, frozen=True, kw_only=True):
    """A piece, and where it was last seen."""

    piece: Piece
    hints: tuple[SegmentHint, ...] = ()
    store: Durable | None = None


def hints_within(piece: Piece, plans: Sequence[Plan]) -> tuple[SegmentHint, ...]:
    """Return the segments of plans that hold some of a piece."""
    hints: list[SegmentHint] = []
    for plan in plans:
        for part in plan.pieces:
            low, high = max(part.from_, piece.start), min(part.to, piece.end)
            if part.topic != piece.topic or part.segment is None or low >= high:
                continue
            if hints and hints[-1].key == part.segment and hints[-1].end == low:
                hints[-1] = SegmentHint(part.segment, hints[-1].start, high)
            else:
                hints.append(SegmentHint(part.segment, low, high))
    return tuple(hints)


class PieceReader:
    """Reads one piece in one task. `columns` are the stored columns it yields."""

    def __init__(
        self,
        options: ReadOptions,
        task: PieceTask,
        columns: Sequence[str],
        times: TimeBounds = ANY_TIME,
    ) -> None:
        self._options = options
        self._times = times
        self._piece = task.piece
        self._hints = task.hints
        self._columns = columns
        self._brokers: Brokers = brokers_of(options.access)
        self._files = SegmentFiles(task.store) if task.store is not None else None
        self._at = task.piece.start

    def rows(self) -> Stored:
        """Yield the piece's rows in order, each batch with the offset of its first row."""
        attempts = self._brokers.attempts()
        while self._at < self._piece.end:
            try:
                for first, batch in self._next_part():
                    yield first, batch
                    self._at = first + batch.num_rows
                    attempts.progressed()
            except (DataLoss, Corruption):
                raise
            except InvalidRequest as error:
                self._pass_over_loss(error)
            except DanubeError as error:
                self._hints = ()
                attempts.failed(error)

    def _next_part(self) -> Stored:
        """Read on from here, until another source has to be taken."""
        hint = next((each for each in self._hints if each.start <= self._at < each.end), None)
        if hint is not None and self._files is not None:
            return self._from_segment(hint, self._files)
        return self._from_broker(
            min([self._piece.end, *(each.start for each in self._hints if each.start > self._at)])
        )

    def _from_segment(self, hint: SegmentHint, files: SegmentFiles) -> Stored:
        end = min(hint.end, self._piece.end)
        try:
            yield from files.read(hint.key, self._at, end, self._columns, self._times)
        except Unavailable as error:
            self._look_again(hint, error)
            return
        self._at = end  # Row groups without a row that is wanted were left out.

    def _look_again(self, hint: SegmentHint, error: Unavailable) -> None:
        """Find the rest of the piece: a segment may have been joined with others meanwhile."""
        topics = Topics(self._brokers, Selection(names=(Place.of(self._piece.topic).topic,)))
        plans = topics.segments_between({self._piece.topic: (self._at, self._piece.end)})
        self._hints = hints_within(self._piece, plans)
        if any(each.key == hint.key for each in self._hints):
            if self._options.segment_access == "direct":
                raise Corruption(
                    f"segment {hint.key} is in the catalogue of {self._piece.topic} and not in "
                    f"the store: {error}. Restore the object from a copy"
                ) from error
            self._hints = ()  # It may not be visible from here: let the broker look.

    def _from_broker(self, end: int) -> Stored:
        lenient = not self._options.fail_on_data_loss
        ticket = Ticket(
            topic=self._piece.topic,
            id=self._piece.id,
            from_=self._at,
            to=end,
            missing="skip" if lenient else "refuse",
        )
        stream = self._brokers.stream(lambda broker: broker.get(ticket), ticket.topic)
        for first, batch in stream:
            if first != self._at and not (lenient and first > self._at):
                raise Corruption(
                    f"topic {self._piece.topic}: offset {first} came where {self._at} was due"
                )
            yield first, batch
        if lenient:
            self._at = end  # What is missing at the end was skipped.
        elif self._at < end:
            raise Unavailable(f"the broker ended a read at {self._at}, before {end}")

    def _pass_over_loss(self, error: InvalidRequest) -> None:
        """Find out what is gone, and go on behind it if that is allowed."""
        piece = self._piece
        wanted = f"offset {self._at}"
        topics = Topics(self._brokers, Selection(names=(piece.topic,)))
        state = topics.states().get(piece.topic)
        if state is None or state.id != piece.id:
            loss = DataLoss(piece.topic, wanted, "the topic is gone or was created anew since")
            left = piece.end
        elif self._at < state.earliest:
            loss = DataLoss(piece.topic, wanted, f"the first one is {state.earliest}")
            left = min(state.earliest, piece.end)
        elif isinstance(error, NotFound) or piece.end > state.frontier:
            loss = DataLoss(piece.topic, wanted, f"it ends at {state.frontier}: {error}")
            left = piece.end
        else:
            raise error
        if self._options.fail_on_data_loss:
            raise loss from error
        _log.warning("going on without what is lost: %s", loss)
        self._at = left


def read_task(
    options: ReadOptions,
    task: PieceTask,
    schema: pa.Schema,
    conditions: Sequence[Condition] = (),
    reader: ReaderSchema | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task as Spark wants them, those alone that meet all conditions."""
    place = Place.of(task.piece.topic)
    decoder = _decoder(options, reader) if reader is not None else None
    plain = _plain_schema(schema) if decoder is not None else schema
    pieces = PieceReader(options, task, stored_columns(plain.names), time_bounds(conditions))
    expression = expression_of(conditions, schema)

    def converted() -> Iterator[pa.RecordBatch]:
        for first, batch in pieces.rows():
            rows = to_rows(batch, first, place, plain)
            if expression is not None:
                rows = rows.filter(expression)
            yield rows if decoder is None else _with_values(rows, first, decoder, schema)

    yield from gather(converted())
    keep_what_is_loaded()


def _decoder(options: ReadOptions, reader: ReaderSchema) -> PayloadDecoder:
    return PayloadDecoder(
        reader,
        lambda schema_id, version: writer_schema(options.access, schema_id, version),
        strict=options.on_decode_error == "fail",
    )


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns to read for rows with decoded values."""
    kept = [field for field in schema if field.name not in DECODED_COLUMNS]
    names = {field.name for field in kept}
    return pa.schema([*kept, *(field for field in _NEEDED if field.name not in names)])


_NEEDED = pa.schema(
    [("payload", pa.binary()), ("schema_id", pa.int64()), ("schema_version", pa.int32())]
)


def _with_values(
    rows: pa.RecordBatch, first: int, decoder: PayloadDecoder, schema: pa.Schema
) -> pa.RecordBatch:
    values, errors = decoder.decode(rows, first)
    made = {"value": values, "decode_error": errors}
    columns = [
        fit(made[field.name], field.type) if field.name in made else rows.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
