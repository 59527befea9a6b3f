"""Lets a topic's messages pass its schema, whole batches at a time, in the order they came."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from pydanube.errors import DanubeError, Overloaded, Unavailable
from pydanube.model.batch import Batch
from pydanube.model.message import Message
from pydanube.model.schemas import TopicSchema
from pydanube.model.sequences import MessageSequence, SequenceRange
from pydanube.observability.logging import get_logger
from pydanube.registry.registry import SchemaRegistry
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope, call_soon
from pydanube.runtime.threads import WorkerThreads
from pydanube.schemas.format import Schema, Validator
from pydanube.topics.errors import SchemaViolation
from pydanube.topics.gathering import Published
from pydanube.topics.schema_rules import (
    Faults,
    Reason,
    Rows,
    Violation,
    find_faults,
    find_violations,
)
from pydanube.topics.sequencing import BatchPublished

AT_ONCE_ROWS_MAX = 512
AT_ONCE_BYTES_MAX = 128 * 1024
"""What may be looked at on the event loop; more is looked at in a thread meanwhile."""
WAITING_BYTES_MAX = 128 * 1024 * 1024
"""What may wait to be looked at, in all topics of the broker together."""
MESSAGE_BYTES_ACCOUNTED = 256
"""Added to every payload, so that many empty messages do not wait for free."""
_WARN_EVERY_MS = 10_000

_log = get_logger(__name__)


class InspectionObserver(Protocol):
    """Is told what is worth counting."""

    def validated(self, policy: str, count: int) -> None:
        """Count messages that were looked at together."""

    def violated(self, reason: str, count: int) -> None:
        """Count messages that were not what the topic asks for, accepted or not."""


class WaitingRoom:
    """How many bytes wait, in all topics of the broker."""

    def __init__(self) -> None:
        self.bytes = 0


class InspectionContext(Struct, frozen=True, kw_only=True):
    """What inspections of a broker share."""

    registry: SchemaRegistry
    threads: WorkerThreads
    waiting: WaitingRoom


class _Single(Struct, frozen=True):
    message: Message
    answer: Published
    number: MessageSequence | None
    bytes: int


class _Batched(Struct, frozen=True):
    batch: Batch
    answer: BatchPublished
    stamp: SequenceRange | None
    bytes: int


_Item = _Single | _Batched


class _Group(Struct, frozen=True):
    """Items that are looked at together: single messages in a row, or one batch."""

    items: Sequence[_Item]
    rows: Rows
    bytes: int


class Outlet(Protocol):
    """Where messages go that have passed."""

    def pass_message(
        self, message: Message, answer: Published, number: MessageSequence | None
    ) -> None:
        """Take a message."""

    def pass_batch(self, batch: Batch, answer: BatchPublished, stamp: SequenceRange | None) -> None:
        """Take a batch."""

    def closing(self) -> DanubeError | None:
        """Return why the topic takes nothing any more, if so."""


class Inspection:
    """Looks at what a topic is sent and hands on what may be stored, in the order it came.

    Messages of one tick are looked at together; of those only the bad ones are refused, while one
    bad row refuses its batch. Nothing passes that the rule of the moment refuses: what was looked
    at under another rule is looked at again. All of it runs on the event loop but the look itself,
    when there is much to look at.
    """

    def __init__(
        self,
        topic: str,
        context: InspectionContext,
        clock: Clock,
        tasks: TaskScope,
        observer: InspectionObserver,
        outlet: Outlet,
    ) -> None:
        self._topic = topic
        self._context = context
        self._clock = clock
        self._tasks = tasks
        self._observer = observer
        self._outlet = outlet
        self.rule: TopicSchema | None = None
        """What holds now; None lets everything pass."""
        self._waiting: list[_Item] = []
        self._looking = False
        self._scheduled = False
        self._warned_ms: dict[Reason, int] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits here."""
        return not self._waiting and not self._looking

    def add(self, message: Message, answer: Published, number: MessageSequence | None) -> None:
        """Look at a message together with the others of this tick; `answer` follows."""
        size = len(message.payload) + MESSAGE_BYTES_ACCOUNTED
        self._enter(_Single(message, answer, number, size))
        if not self._scheduled and not self._looking:
            self._scheduled = True
            call_soon(self._look_at_waiting)

    def add_batch(self, batch: Batch, answer: BatchPublished, stamp: SequenceRange | None) -> None:
        """Look at a batch, at once if it is small and none waits; `answer` follows."""
        self._enter(_Batched(batch, answer, stamp, batch.size_bytes))
        if not self._looking:
            self._look_at_waiting()

    def _enter(self, item: _Item) -> None:
        room = self._context.waiting
        if room.bytes + item.bytes > WAITING_BYTES_MAX:
            item.answer(None, Overloaded("too many bytes wait for validation; try again"))
            return
        room.bytes += item.bytes
        self._waiting.append(item)

    def _look_at_waiting(self) -> None:
        self._scheduled = False
        while self._waiting and not self._looking:
            group = self._next_group()
            if self._is_small(group) and self._look_at_once(group):
                continue
            self._looking = True
            self._tasks.start(self._look_in_thread(group), f"validation for {self._topic}")

    def _next_group(self) -> _Group:
        first = self._waiting[0]
        if isinstance(first, _Batched):
            taken: Sequence[_Item] = [self._waiting.pop(0)]
            rows = Rows.of_columns(first.batch.record_batch())
        else:
            end = next(
                (i for i, each in enumerate(self._waiting) if isinstance(each, _Batched)),
                len(self._waiting),
            )
            taken, self._waiting = self._waiting[:end], self._waiting[end:]
            singles = [item.message for item in taken if isinstance(item, _Single)]
            rows = Rows.of_messages(singles)
        return _Group(taken, rows, sum(item.bytes for item in taken))

    def _is_small(self, group: _Group) -> bool:
        return group.rows.count <= AT_ONCE_ROWS_MAX and group.bytes <= AT_ONCE_BYTES_MAX

    # Looking.

    def _look_at_once(self, group: _Group) -> bool:
        """Look at a group here and now; False if its schemas have to be parsed first."""
        rule = self.rule
        if rule is None or self._outlet.closing() is not None:
            self._hand_on(group, rule, [])
            return True
        faults = self._faults(rule, group.rows)
        schemas = self._schemas_at_hand(rule, faults)
        if schemas is None:
            return False
        validators = {version: schema.validator() for version, schema in schemas.items()}
        self._hand_on(group, rule, find_violations(group.rows, faults, validators))
        return True

    async def _look_in_thread(self, group: _Group) -> None:
        try:
            rule, violations = await self._found_in_thread(group)
        except BaseException:
            # Whoever waits is answered, whatever it was; the owner of the task reports it.
            waiting, self._waiting = self._waiting, []
            interrupted = Unavailable("validation was interrupted; send it again")
            self._refuse([*group.items, *waiting], interrupted)
            raise
        finally:
            self._looking = False
        self._hand_on(group, rule, violations)
        self._look_at_waiting()

    async def _found_in_thread(self, group: _Group) -> tuple[TopicSchema | None, list[Violation]]:
        while True:
            rule = self.rule
            if rule is None or self._outlet.closing() is not None:
                return rule, []
            faults = self._faults(rule, group.rows)
            work = self._work(rule, group.rows, faults)
            violations, parsed = await self._context.threads.run(work)
            self._keep(rule, parsed)
            if self.rule is rule:
                return rule, violations

    def _work(
        self, rule: TopicSchema, rows: Rows, faults: Faults
    ) -> Callable[[], tuple[list[Violation], Mapping[int, Schema]]]:
        registry = self._context.registry
        wanted = set(faults.versions.values()) if rule.validates_payloads else set()
        parsing = {version: registry.parsing(rule.subject, version) for version in wanted}

        def look() -> tuple[list[Violation], Mapping[int, Schema]]:
            validators: dict[int, Validator | str] = {}
            parsed: dict[int, Schema] = {}
            for version, parse in parsing.items():
                try:
                    parsed[version] = parse()
                    validators[version] = parsed[version].validator()
                except DanubeError as error:
                    validators[version] = str(error)
            return find_violations(rows, faults, validators), parsed

        return look

    def _faults(self, rule: TopicSchema, rows: Rows) -> Faults:
        registry = self._context.registry
        return find_faults(rule, registry.subject(rule.subject), rows, registry.subject_of)

    def _schemas_at_hand(self, rule: TopicSchema, faults: Faults) -> Mapping[int, Schema] | None:
        if not rule.validates_payloads or not faults.versions:
            return {}
        registry = self._context.registry
        record = registry.subject(rule.subject)
        assert record is not None, "no version is known of a subject that does not exist"
        schemas: dict[int, Schema] = {}
        for version in faults.versions.values():
            schema = registry.compiled((record.id, version))
            if schema is None:
                return None
            schemas[version] = schema
        return schemas

    def _keep(self, rule: TopicSchema, parsed: Mapping[int, Schema]) -> None:
        record = self._context.registry.subject(rule.subject)
        if record is not None:
            for version, schema in parsed.items():
                self._context.registry.keep((record.id, version), schema)

    # Handing on.

    def _hand_on(
        self, group: _Group, rule: TopicSchema | None, violations: Sequence[Violation]
    ) -> None:
        """Let pass what may, refuse the rest, and count."""
        closing = self._outlet.closing()
        if closing is not None:
            self._refuse(group.items, closing)
            return
        self._context.waiting.bytes -= group.bytes
        refused: dict[int, SchemaViolation] = {}
        if rule is not None:
            self._observer.validated(rule.policy, group.rows.count)
            self._count(violations)
            if rule.policy == "enforce":
                refused = {each.row: self._violation(each) for each in reversed(violations)}
            elif violations:
                self._warn(violations)
        for row, item in enumerate(group.items):
            match item:
                case _Single(message, answer, number):
                    if row in refused:
                        answer(None, refused[row])
                    else:
                        self._outlet.pass_message(message, answer, number)
                case _Batched(batch, batch_answer, stamp):
                    if refused:
                        batch_answer(None, self._row_violation(refused, batch.count))
                    else:
                        self._outlet.pass_batch(batch, batch_answer, stamp)

    def _refuse(self, items: Sequence[_Item], error: DanubeError) -> None:
        self._context.waiting.bytes -= sum(item.bytes for item in items)
        for item in items:
            item.answer(None, error)

    def _violation(self, violation: Violation) -> SchemaViolation:
        return SchemaViolation(
            f"topic {self._topic} does not take the message ({violation.reason}): {violation.text}"
        )

    def _row_violation(self, refused: Mapping[int, SchemaViolation], count: int) -> SchemaViolation:
        row = min(refused)
        more = f", nor {len(refused) - 1} other rows" if len(refused) > 1 else ""
        return SchemaViolation(
            f"nothing of the batch was stored: row {row} of {count}{more}: {refused[row]}"
        )

    def _count(self, violations: Sequence[Violation]) -> None:
        for reason in {violation.reason for violation in violations}:
            self._observer.violated(reason, sum(each.reason == reason for each in violations))

    def _warn(self, violations: Sequence[Violation]) -> None:
        now_ms = self._clock.monotonic_ms()
        for violation in violations:
            warned_ms = self._warned_ms.get(violation.reason)
            if warned_ms is None or now_ms - warned_ms >= _WARN_EVERY_MS:
                self._warned_ms[violation.reason] = now_ms
                _log.warning(
                    "a message does not match its topic's schema; it was accepted",
                    topic=self._topic,
                    reason=violation.reason,
                    cause=violation.text[:500],
                )
