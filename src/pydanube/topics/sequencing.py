"""Numbered messages and batches: what a producer sends twice is stored once."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, assert_never

from pydanube.errors import DanubeError, Unavailable
from pydanube.model.batch import Batch
from pydanube.model.ids import Offset, ProducerId
from pydanube.model.message import Message
from pydanube.model.sequences import (
    AlreadyApplied,
    Applied,
    MessageSequence,
    Outcome,
    Overlap,
    SequenceRange,
    check_range,
    sequence_key,
)
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import call_soon
from pydanube.storage.topic_log import LastBatch, ProducerStamp, TopicLog
from pydanube.topics import gathering
from pydanube.topics.early_messages import EarlyMessages, NumberedMessage
from pydanube.topics.errors import SequencesUnknown, SinkNotDeterministic, TooManySequences
from pydanube.topics.gathering import Published

PRODUCERS_MAX = 10_000
"""Of how many producers a topic remembers the sequences."""
SESSION_IDLE_MS = 3_600_000
"""A session that has sent nothing for so long is over; no client repeats a message that late."""
_LOOK_AGAIN_MS = 1_000

BatchPublished = Callable[[Outcome | None, DanubeError | None], None]
"""Answers a batch: with what became of it, or with why it failed."""


class Store(Protocol):
    """Appends a numbered batch to the topic."""

    def __call__(
        self, batch: Batch, stamp: ProducerStamp, answer: Callable[[DanubeError | None], None]
    ) -> Offset:
        """Return its first offset; `answer` follows. Raises if the batch was not taken."""


class _Run:
    """Messages of one producer that will be one batch."""

    __slots__ = ("answers", "bytes", "first", "last", "messages", "session")

    def __init__(self, first: int, *, session: bool) -> None:
        self.first = self.last = first
        self.session = session
        self.messages: list[Message] = []
        self.answers: list[Published] = []
        self.bytes = 0


class Sequencer:
    """Stores what is new, and answers what is repeated once the first one is durable.

    A producer is known by its name, or by name and session. Names are remembered for as long as
    the topic exists, unless a policy says otherwise; sessions until they have been idle for long.
    """

    def __init__(self, topic: str, log: TopicLog, clock: Clock, store: Store) -> None:
        self._topic = topic
        self._log = log
        self._clock = clock
        self._store = store
        self._runs: dict[ProducerId, _Run] = {}
        self._early = EarlyMessages(topic, clock)
        self._look_again_ms = 0
        self.names_idle_ms_max: int | None = None
        """After how long a name may be forgotten as well."""

    # Batches.

    def append(self, batch: Batch, sequences: SequenceRange, answer: BatchPublished) -> None:
        """Store a batch unless that happened before; `answer` follows, now or later."""
        try:
            check_range(sequences)
            key = sequences.key
            self._flush_run(key)
            known = self._log.last_batch(key)
            outcome = judge(known, sequences)
            match outcome:
                case Applied():
                    self._append_new(key, known, batch, sequences, answer)
                case AlreadyApplied() | Overlap():
                    told = partial(_answer_batch, answer, outcome)
                    self._log.when_last_is_durable(key, told)
                case _:
                    assert_never(outcome)
        except DanubeError as error:
            answer(None, error)

    def _append_new(
        self,
        key: ProducerId,
        known: LastBatch | None,
        batch: Batch,
        sequences: SequenceRange,
        answer: BatchPublished,
    ) -> None:
        if known is None:
            self._make_room()
        stamp = ProducerStamp(
            producer_id=key,
            first_sequence=sequences.first,
            last_sequence=sequences.last,
            digest=sequences.digest,
            session=sequences.session is not None,
        )
        # Offsets are given in the order of appending, so this is the one it gets.
        applied = Applied(self._log.next_offset)
        self._store(batch, stamp, partial(_answer_batch, answer, applied))

    # Single messages.

    def add(self, message: Message, number: MessageSequence, answer: Published) -> None:
        """Let a message join its producer's batch of this tick; `answer` follows."""
        key = sequence_key(message.producer_name, number.session)
        numbered = [NumberedMessage(message, number, answer)]
        while numbered:
            # Those that came too early follow the one they waited for.
            first, *numbered = numbered
            if self._take(key, first):
                numbered += self._early.take_following(key, first.number.sequence)

    def _take(self, key: ProducerId, numbered: NumberedMessage) -> bool:
        """Take a message in if it is new and nothing is missing before it; answer it otherwise."""
        number = numbered.number
        last = self._last_sequence(key)
        if last is not None and number.sequence <= last:
            if key not in self._runs:
                self._answer_repeated(key, numbered)
                return False
            # Only what is appended can be waited for; should that fail, this one is new.
            self._flush_run(key)
            return self._take(key, numbered)
        if number.previous is not None and (last is None or last < number.previous):
            self._wait_for_previous(key, numbered, last)
            return False
        try:
            self._gather(key, numbered, last)
        except DanubeError as error:
            numbered.answer(None, error)
            return False
        return True

    def _last_sequence(self, key: ProducerId) -> int | None:
        run = self._runs.get(key)
        if run is not None:
            return run.last
        known = self._log.last_batch(key)
        return None if known is None else known.stamp.last_sequence

    def _gather(self, key: ProducerId, numbered: NumberedMessage, last: int | None) -> None:
        number, message = numbered.number, numbered.message
        run = self._runs.get(key)
        if run is None:
            if last is None:
                self._make_room()
            if not self._runs:
                call_soon(self.flush)
            run = self._runs[key] = _Run(number.sequence, session=number.session is not None)
        run.last = number.sequence
        run.messages.append(message)
        run.answers.append(numbered.answer)
        run.bytes += len(message.payload)
        if len(run.messages) >= gathering.BATCH_MESSAGES_MAX or (
            run.bytes >= gathering.BATCH_BYTES_MAX
        ):
            self._flush_run(key)

    def _answer_repeated(self, key: ProducerId, numbered: NumberedMessage) -> None:
        known = self._log.last_batch(key)
        assert known is not None, "a repeated message was sent before"
        offset = _offset_in(known, numbered.number.sequence)
        self._log.when_last_is_durable(key, partial(_answer_run, offset, [numbered.answer]))

    def _wait_for_previous(
        self, key: ProducerId, numbered: NumberedMessage, last: int | None
    ) -> None:
        if last is not None:
            self._early.add(key, numbered)
            return
        unknown = SequencesUnknown(
            f"topic {self._topic} does not know the session that message "
            f"{numbered.number.sequence} of producer {numbered.message.producer_name} continues; "
            "begin a new session"
        )
        numbered.answer(None, unknown)

    def flush(self) -> None:
        """Store what has gathered now."""
        for key in list(self._runs):
            self._flush_run(key)

    def _flush_run(self, key: ProducerId) -> None:
        run = self._runs.pop(key, None)
        if run is None:
            return
        stamp = ProducerStamp(
            producer_id=key, first_sequence=run.first, last_sequence=run.last, session=run.session
        )
        base = self._log.next_offset
        stored = partial(_answer_run, base, run.answers)
        try:
            self._store(Batch.gather(run.messages), stamp, stored)
        except DanubeError as error:
            stored(error)

    def close(self, error: DanubeError) -> None:
        """Wait for nothing any more."""
        self._early.refuse_all(error)

    # Whom to remember.

    def _make_room(self) -> None:
        """Refuse a producer that is not known yet if there are too many that are."""
        if len(self._log.producers) < PRODUCERS_MAX:
            return
        if self._clock.monotonic_ms() >= self._look_again_ms:
            self.forget_idle()
            self._look_again_ms = self._clock.monotonic_ms() + _LOOK_AGAIN_MS
        if len(self._log.producers) >= PRODUCERS_MAX:
            raise TooManySequences(
                f"topic {self._topic} remembers the sequences of {PRODUCERS_MAX} producers, "
                "its maximum; set the policy forget_sequences_after_ms if some are gone "
                "for good, or send without sequences"
            )

    def forget_idle(self) -> None:
        """Forget sessions that are over and, if a policy says so, names that are not used."""
        now_ms = self._clock.now_ms()
        for key, last in list(self._log.producers.items()):
            idle_ms_max = SESSION_IDLE_MS if last.stamp.session else self.names_idle_ms_max
            if idle_ms_max is not None and now_ms - last.time_ms > idle_ms_max:
                self._log.forget_producer(key)


def judge(known: LastBatch | None, sequences: SequenceRange) -> Outcome:
    """Tell what becomes of a batch, given its producer's latest one; Applied if it is new."""
    if known is None or sequences.first > known.stamp.last_sequence:
        _check_previous(known, sequences)
        return Applied(None)
    stamp = known.stamp
    if sequences.last > stamp.last_sequence:
        return Overlap(stamp.last_sequence)
    same = (sequences.first, sequences.last) == (stamp.first_sequence, stamp.last_sequence)
    digests = (sequences.digest, stamp.digest)
    if same and None not in digests and sequences.digest != stamp.digest:
        raise SinkNotDeterministic(
            f"SINK_NOT_DETERMINISTIC: producer {sequences.producer} has sent sequences "
            f"{sequences.first} to {sequences.last} before, with other contents; what was stored "
            "first stays. Let whatever computes the batch compute the same one when it is repeated"
        )
    return AlreadyApplied(known.base if same else _offset_in(known, sequences.first))


def _check_previous(known: LastBatch | None, sequences: SequenceRange) -> None:
    previous = sequences.previous
    if previous is not None and (known is None or known.stamp.last_sequence < previous):
        raise Unavailable(
            f"the batch of producer {sequences.producer} that ends with sequence {previous} has "
            f"not been stored; send it before the one that begins with {sequences.first}"
        )


def _offset_in(known: LastBatch, sequence: int) -> Offset | None:
    """Return the offset of one message of a batch whose numbers have no gap; None otherwise."""
    first, last = known.stamp.first_sequence, known.stamp.last_sequence
    if first <= sequence <= last and last - first + 1 == known.count:
        return Offset(known.base + sequence - first)
    return None


def _answer_batch(answer: BatchPublished, outcome: Outcome, error: DanubeError | None) -> None:
    answer(outcome if error is None else None, error)


def _answer_run(base: Offset | None, answers: list[Published], error: DanubeError | None) -> None:
    for row, answer in enumerate(answers):
        offset = None if base is None or error is not None else Offset(base + row)
        answer(offset, error)
