"""The laws of dispatch are worth something: each of these bugs breaks one."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pydanube.dispatch.events import Dispatcher, DispatchSettings
from pydanube.dispatch.exclusive import ExclusiveDispatcher
from pydanube.dispatch.failover import FailoverDispatcher
from pydanube.dispatch.key_shared import KeySharedDispatcher
from pydanube.dispatch.poison import Failure
from pydanube.dispatch.redelivery import NEVER, Waiting
from pydanube.dispatch.reliable import ReliableDispatcher
from pydanube.dispatch.shared import SharedDispatcher
from pydanube.model.ids import ConsumerId, Offset
from pydanube.model.policies import SubscriptionType
from pydanube.model.progress import Progress
from tests.property.test_dispatch_laws import Laws, TimelyLaws, laws_of

pytestmark = pytest.mark.slow

Bug = dict[str, Callable[..., Any]]

DISPATCHERS: dict[SubscriptionType, type[ReliableDispatcher]] = {
    "Exclusive": ExclusiveDispatcher,
    "Shared": SharedDispatcher,
    "Failover": FailoverDispatcher,
    "KeyShared": KeySharedDispatcher,
}


def cursor_jumps(base: Any) -> Bug:
    def _settle(self: Any, pieces: Any) -> None:
        base._settle(self, pieces)
        self._settled.cursor = max(self._settled.cursor, *(end for _, end, _ in pieces))

    return {"_settle": _settle}


def window_is_one_too_large(base: Any) -> Bug:
    return {"_room": lambda self: base._room(self) + 1}


def credit_is_ignored(base: Any) -> Bug:
    def _deliver(self: Any, member: Any, start: int, end: int, attempt: int) -> None:
        base._deliver(self, member, start, end, attempt)
        member.credit += end - start

    return {"_deliver": _deliver}


def settled_messages_are_redelivered(base: Any) -> Bug:
    def _settle_known(self: Any, start: int, end: int) -> Any:
        pieces = self._in_flight.take(start, end)
        for at, to, attempts in pieces:
            self._settled.add(at, to)
            self._make_ready(at, to, attempts)
        return pieces

    return {"_settle_known": _settle_known}


def attempts_begin_anew(base: Any) -> Bug:
    return {"_make_ready": lambda self, start, end, attempts: base._make_ready(self, start, end, 0)}


def attempts_are_not_kept(base: Any) -> Bug:
    return {"_count": lambda self, start, end, attempts: None}


def late_acks_are_ignored(base: Any) -> Bug:
    def _settle_known(self: Any, start: int, end: int) -> Any:
        pieces = self._in_flight.take(start, end)
        if pieces:
            self._settle(pieces)
        return pieces

    return {"_settle_known": _settle_known}


def acks_from_before_a_restart_are_ignored(base: Any) -> Bug:
    return {"_settle_seen_before": lambda self, start, end, settled: None}


def retries_never_wake(base: Any) -> Bug:
    def _next_timer_ms(self: Any) -> int:
        return int(min(self._in_flight.oldest_ms + self._settings.policy.ack_timeout_ms, NEVER))

    return {"_next_timer_ms": _next_timer_ms}


def disconnects_exhaust(base: Any) -> Bug:
    def _take_back(self: Any, consumer: ConsumerId) -> None:
        self._fail(self._in_flight.take_from(consumer), 0, None)

    return {"_take_back": _take_back}


def leaving_loses_messages(base: Any) -> Bug:
    return {"_take_back": lambda self, consumer: self._in_flight.take_from(consumer) and None}


def leaving_takes_back_from_everybody(base: Any) -> Bug:
    def _take_back(self: Any, consumer: ConsumerId) -> None:
        for member in list(self._members):
            base._take_back(self, member)

    return {"_take_back": _take_back}


def restarts_forget_what_is_settled(base: Any) -> Bug:
    def __init__(
        self: Any, progress: Progress, start_settings: DispatchSettings, seen_end: Offset
    ) -> None:
        forgetful = Progress(progress.cursor, (), progress.attempts)
        base.__init__(self, forgetful, start_settings, seen_end)

    return {"__init__": __init__}


def poison_is_dropped_whatever_the_policy(base: Any) -> Bug:
    def _give_up(self: Any, start: int, end: int, failure: Failure) -> None:
        self._settle([(start, end, failure.attempts)])

    return {"_give_up": _give_up}


def failed_dead_letters_count_as_stored(base: Any) -> Bug:
    def _answer_dead_letter(self: Any, event: Any) -> None:
        failure = self._exhausted.answer(event.offset)
        if failure is not None:
            self._settle([(event.offset, event.offset + 1, failure.attempts)])

    return {"_answer_dead_letter": _answer_dead_letter}


def new_policies_wait_for_the_next_failure(base: Any) -> Bug:
    def _configure(self: Any, new_settings: DispatchSettings) -> None:
        self._settings = new_settings
        self._bucket = None

    return {"_configure": _configure}


def nacks_release_the_key(base: Any) -> Bug:
    def _retry(self: Any, start: int, end: int, attempts: int, wait_ms: int) -> None:
        base._retry(self, start, end, attempts, wait_ms)
        for offset in range(start, end):
            key = self._firsts[offset]
            if key.later:
                self._firsts[key.later[0]] = key
                self._new_turns.append(key.later[0])
                key.first, key.delivered = key.later.popleft(), False

    return {"_retry": _retry}


def settling_does_not_release_the_key(base: Any) -> Bug:
    def _release(self: Any, offset: int) -> None:
        key = self._firsts[offset]
        if key.later:
            self._read_ahead_count -= len(key.later)
            key.later = None
        base._release(self, offset)

    return {"_release": _release}


def absent_consumers_keep_their_keys(base: Any) -> Bug:
    return {"_disown": lambda self, member: None}


def filters_are_ignored(base: Any) -> Bug:
    def _join(self: Any, event: Any) -> None:
        base._join(self, event)
        self._members[event.consumer].filters = ()

    return {"_join": _join}


def another_message_is_told_than_the_one_that_blocks(base: Any) -> Bug:
    def _give_up(self: Any, start: int, end: int, failure: Failure) -> None:
        base._give_up(self, start, end, Failure(failure.attempts - 1, failure.reason))

    return {"_give_up": _give_up}


def postponed_messages_do_not_wait(base: Any) -> Bug:
    def _postpone(self: Any, event: Any) -> None:
        base._postpone(self, msgspec.structs.replace(event, due_ms=self._now_ms))

    return {"_postpone": _postpone}


def postponed_messages_lose_their_attempts(base: Any) -> Bug:
    def _postpone(self: Any, event: Any) -> None:
        for start, end, _ in self._in_flight.take(event.start, event.end):
            self._delayed.schedule(start, end, 0, event.due_ms)
            self._wake_by(event.due_ms)

    return {"_postpone": _postpone}


def postponed_messages_were_delivered(base: Any) -> Bug:
    def _postpone(self: Any, event: Any) -> None:
        for start, end, attempts in self._in_flight.take(event.start, event.end):
            self._delayed.schedule(start, end, attempts, event.due_ms)
            self._wake_by(event.due_ms)

    return {"_postpone": _postpone}


def nobody_wakes_for_delayed_messages(base: Any) -> Bug:
    def _next_timer_ms(self: Any) -> int:
        delayed, self._delayed = self._delayed, Waiting()
        try:
            return int(base._next_timer_ms(self))
        finally:
            self._delayed = delayed

    return {"_next_timer_ms": _next_timer_ms}


def delayed_messages_ignore_the_window(base: Any) -> Bug:
    def _pass_time(self: Any) -> None:
        for start, end, attempts in self._delayed.take_due(self._now_ms):
            self._make_ready(start, end, attempts)
        base._pass_time(self)

    return {"_pass_time": _pass_time}


def expiry_takes_what_is_out(base: Any) -> Bug:
    def _expire_below(self: Any, end: int) -> None:
        self._expire(self._in_flight.take(0, end))
        base._expire_below(self, end)

    return {"_expire_below": _expire_below}


def expiry_forgets_what_waits(base: Any) -> Bug:
    def _expire_below(self: Any, end: int) -> None:
        self._settle_undelivered(self._settled.cursor, min(end, self._end))

    return {"_expire_below": _expire_below}


def seeking_leaves_deliveries_out(base: Any) -> Bug:
    def _seek(self: Any, offset: int) -> None:
        out = self._in_flight
        base._seek(self, offset)
        self._in_flight = out

    return {"_seek": _seek}


def seeking_honours_earlier_acks(base: Any) -> Bug:
    def _seek(self: Any, offset: int) -> None:
        seen_end = self._seen_end
        base._seek(self, offset)
        self._seen_end = seen_end

    return {"_seek": _seek}


def seeking_keeps_retries(base: Any) -> Bug:
    def _seek(self: Any, offset: int) -> None:
        retries = self._retries
        base._seek(self, offset)
        self._retries = retries

    return {"_seek": _seek}


def a_postponed_message_releases_its_key(base: Any) -> Bug:
    def _postpone(self: Any, event: Any) -> None:
        held = [self._firsts.get(offset) for offset in range(event.start, event.end)]
        base._postpone(self, event)
        for key in held:
            if key is not None and key.later:
                self._firsts[key.later[0]] = key
                self._new_turns.append(key.later[0])
                key.first, key.delivered = key.later.popleft(), False

    return {"_postpone": _postpone}


EVERYWHERE = [
    cursor_jumps,
    window_is_one_too_large,
    credit_is_ignored,
    settled_messages_are_redelivered,
    attempts_begin_anew,
    attempts_are_not_kept,
    late_acks_are_ignored,
    retries_never_wake,
    disconnects_exhaust,
    leaving_loses_messages,
    restarts_forget_what_is_settled,
    poison_is_dropped_whatever_the_policy,
    new_policies_wait_for_the_next_failure,
]
PLANTED: list[tuple[SubscriptionType, Callable[[Any], Bug]]] = [
    *(("Exclusive", bug) for bug in EVERYWHERE),
    *(("KeyShared", bug) for bug in EVERYWHERE),
    ("Shared", leaving_takes_back_from_everybody),
    ("KeyShared", leaving_takes_back_from_everybody),
    # In code that all kinds share; this one is found soonest.
    ("Exclusive", failed_dead_letters_count_as_stored),
    ("Shared", acks_from_before_a_restart_are_ignored),
    ("KeyShared", acks_from_before_a_restart_are_ignored),
    ("KeyShared", nacks_release_the_key),
    ("KeyShared", settling_does_not_release_the_key),
    ("KeyShared", absent_consumers_keep_their_keys),
    ("KeyShared", filters_are_ignored),
    ("Exclusive", another_message_is_told_than_the_one_that_blocks),
]

PLANTED_IN_TIME: list[tuple[SubscriptionType, Callable[[Any], Bug]]] = [
    ("Exclusive", postponed_messages_do_not_wait),
    ("Exclusive", postponed_messages_lose_their_attempts),
    ("Exclusive", postponed_messages_were_delivered),
    ("Exclusive", nobody_wakes_for_delayed_messages),
    ("Exclusive", delayed_messages_ignore_the_window),
    ("Exclusive", expiry_takes_what_is_out),
    ("Exclusive", expiry_forgets_what_waits),
    ("Exclusive", seeking_leaves_deliveries_out),
    ("Exclusive", seeking_honours_earlier_acks),
    ("Exclusive", seeking_keeps_retries),
    ("KeyShared", postponed_messages_were_delivered),
    ("KeyShared", delayed_messages_ignore_the_window),
    ("KeyShared", expiry_takes_what_is_out),
    ("KeyShared", seeking_leaves_deliveries_out),
    ("KeyShared", a_postponed_message_releases_its_key),
]


def live_through(
    kind: SubscriptionType, bug: Callable[[Any], Bug], examples: int, laws: type[Laws] = Laws
) -> None:
    base = DISPATCHERS[kind]
    broken: Any = type("Broken", (base,), bug(base))

    def factory(
        _: SubscriptionType, progress: Progress, start: DispatchSettings, seen_end: Offset
    ) -> Dispatcher:
        made: Dispatcher = broken(progress, start, seen_end)
        return made

    run_state_machine_as_test(
        laws_of(kind, factory, laws),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize(
    ("kind", "bug"), PLANTED, ids=[f"{kind}-{bug.__name__}" for kind, bug in PLANTED]
)
def test_a_planted_bug_breaks_a_law(kind: SubscriptionType, bug: Callable[[Any], Bug]) -> None:
    with pytest.raises(AssertionError):
        live_through(kind, bug, examples=1_000)


@pytest.mark.parametrize(
    ("kind", "bug"),
    PLANTED_IN_TIME,
    ids=[f"{kind}-{bug.__name__}" for kind, bug in PLANTED_IN_TIME],
)
def test_a_bug_about_time_breaks_a_law(kind: SubscriptionType, bug: Callable[[Any], Bug]) -> None:
    with pytest.raises(AssertionError):
        live_through(kind, bug, examples=10_000, laws=TimelyLaws)


@pytest.mark.parametrize("kind", DISPATCHERS)
def test_without_a_bug_no_law_breaks(kind: SubscriptionType) -> None:
    live_through(kind, lambda base: {}, examples=25)
