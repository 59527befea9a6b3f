"""Publishes the rows of a task to one physical topic, across lost connections and restarts."""

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.errors import Conflict, DanubeError
from pydanube.model.batch import SCHEMA
from pydanube.spark.brokers import Brokers
from pydanube.spark.sink.digests import digest_of
from pydanube.wire.flight.blocking import BlockingPut
from pydanube.wire.flight.columns import convert_column
from pydanube.wire.flight.descriptors import (
    BatchNumbers,
    ProducerAction,
    ProducerAnswer,
    PublishCommand,
)


class Numbers(Struct, frozen=True):
    """The numbers of a chunk's rows, growing from the first to the last."""

    first: int
    last: int
    sequences: pa.Array | None = None
    """All of them, if there may be gaps."""

    @classmethod
    def given(cls, sequences: pa.Array) -> Self:
        """Take numbers as they are."""
        return cls(sequences[0].as_py(), sequences[-1].as_py(), sequences)

    def above(self, sequence: int) -> "Numbers":
        """Return those above a number that the last one is above."""
        if self.sequences is None:
            return Numbers(max(self.first, sequence + 1), self.last)
        found: int = pc.index(pc.greater(self.sequences, sequence), True).as_py()
        return Numbers.given(self.sequences.slice(found))

    def __len__(self) -> int:
        """Return how many rows they are."""
        if self.sequences is None:
            return self.last - self.first + 1
        return len(self.sequences)


class _Unanswered(Struct, frozen=True):
    """A chunk on its way."""

    rows: pa.RecordBatch
    numbers: Numbers | None
    digest: int | None


class TopicPublisher:
    """Sends chunks in order, several on their way at a time.

    Numbered chunks are sent again after a lost connection, and stored once. Unnumbered ones are
    sent again, too: they may be stored twice.
    """

    def __init__(
        self, brokers: Brokers, command: PublishCommand, in_flight: int, now_ms: Callable[[], int]
    ) -> None:
        self._brokers = brokers
        self._command = command
        self._in_flight = in_flight
        self._now_ms = now_ms
        self._unanswered: deque[_Unanswered] = deque()
        self._put: BlockingPut | None = None
        self._attempts = brokers.attempts()
        self.stored = 0
        """Rows that are durable, among them those that were before."""
        self.repeated = 0
        """Those of them that were stored by an earlier attempt."""

    def send(self, rows: pa.RecordBatch, numbers: Numbers | None) -> None:
        """Send a chunk of message columns; waits while too many are on their way."""
        while len(self._unanswered) >= self._in_flight:
            self._take_answer()
        # What a repeat cannot know, such as the time of sending, is left out of the digest.
        digest = digest_of(rows) if numbers is not None else None
        whole = completed(rows, self._command.producer, self._now_ms())
        self._write(_Unanswered(whole, numbers, digest))

    def finish(self) -> None:
        """Wait until everything is durable."""
        while self._unanswered:
            self._take_answer()
        if self._put is not None:
            self._put.close()
            self._put = None

    def _write(self, chunk: _Unanswered) -> None:
        self._unanswered.append(chunk)
        if self._put is None:
            self._reopen()
        else:
            self._try_write(self._put, chunk)

    def _try_write(self, put: BlockingPut, chunk: _Unanswered) -> bool:
        """Tell whether a chunk went out; what ended the stream is told with the next answer."""
        try:
            self._write_one(put, chunk)
        except DanubeError:
            return False
        return True

    def _write_one(self, put: BlockingPut, chunk: _Unanswered) -> None:
        numbers = chunk.numbers
        stamp = None
        if numbers is not None:
            stamp = BatchNumbers(
                first_sequence=numbers.first, last_sequence=numbers.last, digest=chunk.digest
            )
        put.write(chunk.rows, stamp)

    def _take_answer(self) -> None:
        assert self._put is not None, "a chunk is on its way without a stream"
        try:
            answer = self._put.answer()
        except Conflict as error:
            self._cut_stored_rows(error)
            return
        except DanubeError as error:
            self._attempts.failed(error)
            self._brokers.leave(self._command.topic)
            self._reopen()
            return
        chunk = self._unanswered.popleft()
        self._attempts.progressed()
        if answer.result == "overlap":
            self._send_rest(chunk, answer.last_sequence)
            return
        self.stored += chunk.rows.num_rows
        if answer.result == "already_applied":
            self.repeated += chunk.rows.num_rows

    def _cut_stored_rows(self, refusal: Conflict) -> None:
        """Go on after a stream that ended before its answers were read.

        A write to a stream that the broker has ended makes Flight forget the answers that wait
        there; where the stored rows end is asked for instead.
        """
        command = self._command
        action = ProducerAction(
            topic=command.topic, producer=command.producer, session=command.session
        )
        last = self._brokers.act("producer", action, ProducerAnswer).last_sequence
        for place, chunk in enumerate(self._unanswered):
            numbers = chunk.numbers
            if numbers is not None and last is not None and numbers.first <= last < numbers.last:
                self._unanswered[place] = self._rest(chunk, numbers, last)
                self._reopen()
                return
        raise refusal

    def _send_rest(self, chunk: _Unanswered, last: int | None) -> None:
        """Some rows of the chunk are stored, and the stream has ended: send what lies above."""
        if chunk.numbers is None or last is None:
            raise Conflict(f"{self._command.topic} answered an overlap to rows without numbers")
        self._unanswered.appendleft(self._rest(chunk, chunk.numbers, last))
        self._reopen()

    def _rest(self, chunk: _Unanswered, numbers: Numbers, last: int) -> _Unanswered:
        """Count the rows that are stored, and return those above."""
        above = numbers.above(last)
        known = len(numbers) - len(above)
        self.stored += known
        self.repeated += known
        return _Unanswered(chunk.rows.slice(known), above, None)

    def _reopen(self) -> None:
        """Send everything that is unanswered on a new stream, in its order."""
        self._put = None
        while self._put is None:
            try:
                self._put = self._brokers.once(
                    lambda broker: broker.put(self._command, SCHEMA), self._command.topic
                )
            except DanubeError as error:
                self._attempts.failed(error)
        put = self._put
        all(self._try_write(put, chunk) for chunk in self._unanswered)


def completed(rows: pa.RecordBatch, producer: str, now_ms: int) -> pa.RecordBatch:
    """Return rows in the layout that brokers store as it comes."""
    given = dict(zip(rows.schema.names, rows.columns, strict=True))
    stand_ins = {"publish_time": now_ms, "producer_name": producer}
    columns = []
    for name in SCHEMA.names:
        column, stand_in = given.get(name), stand_ins.get(name)
        if column is None or column.null_count == rows.num_rows:
            columns.append(_filled(name, stand_in, rows.num_rows))
            continue
        column = convert_column(name, column)
        if stand_in is not None and column.null_count:
            column = pc.fill_null(column, stand_in)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


# Chunks of a task have about the same length, and to make these costs as much as to send one.
@lru_cache(maxsize=64)
def _filled(name: str, value: str | int | None, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, SCHEMA.field(name).type), count)
