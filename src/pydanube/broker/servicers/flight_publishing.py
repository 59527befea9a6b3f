"""Flight for producers: a DoPut is a stream of batches, each answered once it is durable."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import assert_never

from pydanube.errors import Conflict, DanubeError, InvalidRequest, Overloaded
from pydanube.model.batch import Batch
from pydanube.model.names import check_client_name
from pydanube.model.policies import DispatchStrategy
from pydanube.model.schemas import SchemaReference
from pydanube.model.sequences import (
    AlreadyApplied,
    Applied,
    Outcome,
    Overlap,
    SequenceRange,
)
from pydanube.observability.metrics import BrokerMetrics
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope, carry_through
from pydanube.topics.catalog import AccessMode
from pydanube.topics.manager import TopicManager
from pydanube.topics.producer import Producer
from pydanube.topics.registration import Registration
from pydanube.topics.topic import Topic
from pydanube.wire.calls import Body, Call
from pydanube.wire.danube.status import status_of
from pydanube.wire.flight.convert import MESSAGE_BYTES_MAX, Intake
from pydanube.wire.flight.descriptors import (
    BatchNumbers,
    PublishCommand,
    PutAnswer,
    command_of,
    decode_metadata,
    encode,
)
from pydanube.wire.flight.framing import (
    BodyParts,
    FlightData,
    read_descriptor,
    read_flight_data,
    write_put_result,
)
from pydanube.wire.flight.handing_over import open_memory, take_over
from pydanube.wire.flight.status import refusals

UNANSWERED_BYTES_MAX = 8 * 1024 * 1024
UNANSWERED_BATCHES_MAX = 1_024
"""What one stream may have under way; beyond, no more is read from its caller."""
OVERLOADED_SECONDS_MAX = 10.0
_RETRY_SECONDS = 0.01
_NEVER = 2**64

_STRATEGIES: dict[str, DispatchStrategy] = {
    "reliable": "Reliable",
    "non_reliable": "NonReliable",
}
_ACCESS_MODES: dict[str, AccessMode] = {"shared": "Shared", "exclusive": "Exclusive"}


class FlightPublishing:
    """Serves DoPut."""

    def __init__(
        self,
        topics: TopicManager,
        registration: Registration,
        clock: Clock,
        metrics: BrokerMetrics,
    ) -> None:
        self._topics = topics
        self._registration = registration
        self._clock = clock
        self._metrics = metrics

    async def do_put(
        self, requests: AsyncIterator[Body], call: Call
    ) -> AsyncIterator[Sequence[bytes]]:
        """Let a producer in and take its batches."""
        with refusals():
            first = await anext(requests, None)
            data = read_flight_data(first) if first is not None else None
            if data is None or data.descriptor is None:
                raise InvalidRequest("a DoPut begins with a descriptor that names the topic")
            command = command_of(PublishCommand, read_descriptor(data.descriptor), "publish")
            memory = None if command.memory is None else open_memory(command.memory)
            producer = await carry_through(self._enter(command))
            stream = PutStream(
                self._topics.get(command.topic),
                command,
                producer,
                self._registration,
                self._clock,
                self._metrics,
                memory,
            )
            return stream.results(data, requests)

    async def _enter(self, command: PublishCommand) -> Producer:
        existing = self._topics.find(command.topic)
        if command.dispatch is not None:
            strategy = _STRATEGIES[command.dispatch]
        else:
            strategy = existing.record.strategy if existing is not None else "Reliable"
        return await self._registration.create_producer(
            command.topic,
            command.producer,
            strategy,
            _ACCESS_MODES[command.access],
            _reference(command),
        )


def _reference(command: PublishCommand) -> SchemaReference | None:
    if command.schema_subject is None:
        return None
    return SchemaReference(subject=check_client_name("schema subject", command.schema_subject))


def _numbers(data: FlightData) -> BatchNumbers:
    return decode_metadata(BatchNumbers, data.app_metadata, "the app_metadata of a batch")


class _Unanswered:
    """A batch that was handed to the topic."""

    __slots__ = ("answered", "bytes", "error", "outcome", "rows", "stream")

    def __init__(self, stream: "PutStream", rows: int, size: int) -> None:
        self.stream = stream
        self.rows = rows
        self.bytes = size
        self.answered = False
        self.outcome: Outcome | None = None
        self.error: DanubeError | None = None

    def answer(self, outcome: Outcome | None, error: DanubeError | None) -> None:
        self.answered = True
        self.outcome = outcome
        self.error = error
        self.stream.wake()


class PutStream:
    """One DoPut: reads batches, hands them to the topic, and gives results in the same order.

    It ends at its first refusal, and no batch behind a refused one is ever stored: its sender
    will send the refused one again, and must not find that later numbers overtook it.
    """

    def __init__(
        self,
        topic: Topic,
        command: PublishCommand,
        producer: Producer,
        registration: Registration,
        clock: Clock,
        metrics: BrokerMetrics,
        memory: memoryview | None,
    ) -> None:
        self._topic = topic
        self._producer = producer
        self._registration = registration
        self._clock = clock
        self._metrics = metrics
        self._intake = Intake(
            command.producer, clock.now_ms, ignore_others=command.other_columns == "ignore"
        )
        self._memory = memory
        self._unanswered: deque[_Unanswered] = deque()
        self._unanswered_bytes = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        # A batch that waits for its turn may be refused later, so none may follow it yet.
        self._rate_limited = topic.policies.max_publish_rate is not None
        self._hold = False
        self._last_sequence: int | None = None
        self._session = command.session
        self._read_to_the_end = False
        self._error: BaseException | None = None

    async def results(
        self, first: FlightData, requests: AsyncIterator[Body]
    ) -> AsyncIterator[Sequence[bytes]]:
        """Yield a PutResult for every batch."""
        scope = TaskScope(lambda name, error: self._fail(error))
        self._producer.streams += 1
        try:
            scope.start(self._listen(first, requests), "DoPut")
            scope.start(self._watch_topic(), "DoPut's topic")
            with refusals():
                while True:
                    self._changed.clear()
                    results = self._take_results()
                    if results:
                        yield results
                    elif self._error is not None and not self._unanswered:
                        # What was handed over before it is answered first: the sender must know
                        # which batch was refused.
                        raise self._error
                    elif self._read_to_the_end and not self._unanswered:
                        return
                    else:
                        await self._changed.wait()
        finally:
            self._producer.streams -= 1
            self._producer.seen_ms = self._clock.monotonic_ms()
            await scope.close()

    def wake(self) -> None:
        """Let results be given and batches be read, if that is possible now."""
        self._changed.set()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.set()
        self._room.set()

    async def _watch_topic(self) -> None:
        await self._topic.frontier.wait_for(_NEVER)

    # In.

    async def _listen(self, first: FlightData, requests: AsyncIterator[Body]) -> None:
        await self._take(first)
        async for request in requests:
            await self._take(read_flight_data(request))
            if self._error is not None:
                return
        self._read_to_the_end = True
        self._changed.set()

    async def _take(self, data: FlightData) -> None:
        header, body = data.header, data.body
        if not header:
            if data.descriptor is not None:
                return
            header, body = self._take_over(data)
        batch = self._intake.take(header, body)
        if batch is None:
            return
        numbers = _numbers(data)
        if numbers.place is not None and data.header:
            raise InvalidRequest("a batch is in its message or at a place in memory, not both")
        if not batch.count:
            self._enter(batch).answer(Applied(None), None)
            return
        stamp = self._stamp(numbers, batch.count)
        waiting = await self._publish(batch, stamp)
        self._hold = (
            self._rate_limited or self._topic.is_inspecting or not self._is_taken(waiting, stamp)
        )
        while self._error is None and not self._has_room():
            self._room.clear()
            await self._room.wait()

    def _take_over(self, data: FlightData) -> tuple[memoryview, BodyParts]:
        """Return the header and the body of a batch in shared memory."""
        if self._memory is None:
            raise InvalidRequest(
                "app_metadata came without a batch, and the stream has named no shared "
                "memory that could hold one"
            )
        place = _numbers(data).place
        if place is None:
            raise InvalidRequest(
                "app_metadata came without a batch, and does not say where in shared "
                "memory the batch is"
            )
        return take_over(self._memory, place, MESSAGE_BYTES_MAX)

    def _stamp(self, numbers: BatchNumbers, count: int) -> SequenceRange | None:
        first, last = numbers.first_sequence, numbers.last_sequence
        if first is None:
            if (last, numbers.digest, numbers.previous_sequence) != (None, None, None):
                raise InvalidRequest("a batch with numbers needs a first_sequence")
            return None
        if last is None:
            last = first + count - 1
        previous = numbers.previous_sequence
        before, self._last_sequence = self._last_sequence, last
        # Of an older batch that is sent again after a newer one, nothing is missing.
        if previous is None and before is not None and before < first:
            previous = before
        return SequenceRange(
            producer=self._producer.name,
            first=first,
            last=last,
            digest=numbers.digest,
            previous=previous,
            session=self._session,
        )

    async def _publish(self, batch: Batch, stamp: SequenceRange | None) -> _Unanswered:
        give_up = self._clock.monotonic_seconds() + OVERLOADED_SECONDS_MAX
        while True:
            # The same door as for single messages; it may have closed since the last batch.
            self._registration.sender(self._producer.id, self._topic.name)
            waiting = self._enter(batch)
            self._topic.publish_batch(batch, waiting.answer, stamp=stamp)
            # Nothing of the batch was taken, so waiting here is what slows the sender down.
            overloaded = waiting.answered and type(waiting.error) is Overloaded
            if not overloaded or self._clock.monotonic_seconds() > give_up:
                return waiting
            self._leave(self._unanswered.pop())
            await self._clock.sleep(_RETRY_SECONDS)

    def _enter(self, batch: Batch) -> _Unanswered:
        waiting = _Unanswered(self, batch.count, len(batch.data))
        self._unanswered.append(waiting)
        self._unanswered_bytes += waiting.bytes
        return waiting

    def _leave(self, waiting: _Unanswered) -> None:
        self._unanswered_bytes -= waiting.bytes
        self._room.set()

    def _is_taken(self, waiting: _Unanswered, stamp: SequenceRange | None) -> bool:
        """Tell whether it is certain already that a batch will not be refused."""
        if waiting.answered:
            return waiting.error is None and not isinstance(waiting.outcome, Overlap)
        if stamp is None or self._topic.log is None:
            return True
        # What was stored before is answered late as well; only what was appended shows here.
        known = self._topic.log.last_batch(stamp.key)
        return known is not None and known.stamp.last_sequence >= stamp.last

    def _has_room(self) -> bool:
        if self._hold:
            return not self._unanswered
        return (
            self._unanswered_bytes < UNANSWERED_BYTES_MAX
            and len(self._unanswered) < UNANSWERED_BATCHES_MAX
        )

    # Out.

    def _take_results(self) -> list[bytes]:
        """Return the results that are due, as far as the first refusal."""
        results: list[bytes] = []
        while self._unanswered and self._unanswered[0].answered:
            waiting = self._unanswered[0]
            if waiting.error is not None:
                self._refused(waiting.error)
                self._unanswered.clear()
                break
            assert waiting.outcome is not None, "an answer is an outcome or an error"
            self._leave(self._unanswered.popleft())
            results.append(write_put_result(encode(self._result(waiting.rows, waiting.outcome))))
            if isinstance(waiting.outcome, Overlap):
                self._unanswered.clear()
                break
        return results

    def _refused(self, error: DanubeError) -> None:
        self._metrics.topic(self._topic.name).refused(status_of(type(error)).name)
        self._fail(error)

    def _result(self, rows: int, outcome: Outcome) -> PutAnswer:
        match outcome:
            case Applied(base):
                return PutAnswer(result="applied", rows=rows, offset=base)
            case AlreadyApplied(base):
                return PutAnswer(result="already_applied", rows=rows, offset=base)
            case Overlap(last_sequence):
                self._refused(
                    Conflict(
                        f"sequences up to {last_sequence} of producer {self._producer.name} are "
                        "stored already; send the rows above again, without those below"
                    )
                )
                return PutAnswer(result="overlap", rows=rows, last_sequence=last_sequence)
            case _:
                assert_never(outcome)
