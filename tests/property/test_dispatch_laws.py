"""Whatever consumers, clocks and operators do, a reliable dispatcher keeps its promises."""

from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pydanube.dispatch.events import DispatchSettings
from pydanube.model.policies import FailurePolicy, SubscriptionType
from tests.support.dispatch_world import START, Factory, World, make_reliable

pytestmark = pytest.mark.slow

# Narrow on purpose: what never collides finds nothing.
CONSUMERS = st.integers(1, 3)
FILTERS = {1: (), 2: ("a*", "?b"), 3: ("b",)}
KEYS = st.lists(st.sampled_from(["a", "b", "ab", "c"]), min_size=1, max_size=6)
BACK = st.integers(0, 12)
LENGTHS = st.integers(1, 5)
POLICIES = st.builds(
    FailurePolicy,
    max_redelivery_count=st.integers(0, 2),
    ack_timeout_ms=st.sampled_from([50, 400, 30_000]),
    base_redelivery_delay_ms=st.sampled_from([0, 10, 300]),
    max_redelivery_delay_ms=st.sampled_from([0, 500, 60_000]),
    backoff_strategy=st.sampled_from(["Fixed", "Exponential"]),
    poison_policy=st.sampled_from(["Block", "Drop", "DeadLetter"]),
)
SETTINGS = st.builds(
    DispatchSettings,
    window=st.integers(1, 6),
    policy=POLICIES,
    rate_per_second=st.sampled_from([None, None, 5]),
)


class Laws(RuleBasedStateMachine):
    """Random lives of one subscription; the world checks every step."""

    kind: ClassVar[SubscriptionType]
    factory: ClassVar[Factory] = staticmethod(make_reliable)

    @initialize(start_settings=SETTINGS, reads_at_once=st.booleans())
    def begin(self, start_settings: DispatchSettings, reads_at_once: bool) -> None:
        self.world = World(self.kind, start_settings, type(self).factory, reads_at_once)

    @rule(keys=KEYS)
    def publish(self, keys: list[str]) -> None:
        self.world.publish(*keys)

    @rule(consumer=CONSUMERS, credit=st.integers(0, 6))
    def join(self, consumer: int, credit: int) -> None:
        self.world.join(consumer, credit, FILTERS[consumer])

    @rule(consumer=CONSUMERS)
    def leave(self, consumer: int) -> None:
        self.world.leave(consumer)

    @rule(consumer=CONSUMERS)
    def remove(self, consumer: int) -> None:
        self.world.remove(consumer)

    @rule(consumer=CONSUMERS, count=st.integers(1, 6))
    def drain(self, consumer: int, count: int) -> None:
        self.world.drain(consumer, count)

    @precondition(lambda self: self.world.held)
    @rule(data=st.data(), length=LENGTHS)
    def ack(self, data: st.DataObject, length: int) -> None:
        start = data.draw(st.sampled_from(sorted(self.world.held)))
        self.world.ack(start, start + length)

    @rule(back=BACK, length=LENGTHS)
    def ack_anything(self, back: int, length: int) -> None:
        start = max(START, self.world.end - back)
        self.world.ack(start, start + length)

    @precondition(lambda self: self.world.held)
    @rule(data=st.data(), length=LENGTHS, delay_ms=st.sampled_from([0, 0, 700]))
    def nack(self, data: st.DataObject, length: int, delay_ms: int) -> None:
        start = data.draw(st.sampled_from(sorted(self.world.held)))
        self.world.nack(start, start + length, delay_ms)

    @rule(ms=st.sampled_from([0, 1, 20, 400, 3_000, 60_000]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule()
    def wake(self) -> None:
        self.world.pass_time_until_woken()

    @precondition(lambda self: self.world.asked)
    @rule(data=st.data(), stored=st.booleans())
    def answer_dead_letter(self, data: st.DataObject, stored: bool) -> None:
        offset = data.draw(st.sampled_from(sorted(self.world.asked)))
        self.world.answer_dead_letter(offset, stored)

    @precondition(lambda self: self.world.read_asked is not None)
    @rule(count=st.integers(0, 4))
    def answer_read(self, count: int) -> None:
        self.world.answer_read(count)

    @rule(start=st.integers(0, 6), length=LENGTHS)
    def skip(self, start: int, length: int) -> None:
        first = self.world.dispatcher.cursor + start
        end = min(first + length, self.world.end)
        if first < end:
            self.world.skip(first, end)

    @rule(new_settings=SETTINGS)
    def configure(self, new_settings: DispatchSettings) -> None:
        self.world.configure(new_settings)

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @invariant()
    def keys_flow(self) -> None:
        if hasattr(self, "world"):
            self.world.check_keys_flow()

    def teardown(self) -> None:
        if hasattr(self, "world") and self.world.sound:
            self.world.heal(FILTERS)


class TimelyLaws(Laws):
    """The same, where messages wait for their time or outlive it, and subscriptions go back."""

    @precondition(lambda self: self.world.held)
    @rule(data=st.data(), length=LENGTHS, delay_ms=st.sampled_from([1, 20, 700, 5_000]))
    def postpone(self, data: st.DataObject, length: int, delay_ms: int) -> None:
        again = [offset for offset, held in self.world.held.items() if held.attempts > 1]
        start = data.draw(st.sampled_from(sorted(again or self.world.held)))
        self.world.postpone(start, start + length, delay_ms)

    @precondition(lambda self: self.world.held)
    @rule(data=st.data(), length=LENGTHS)
    def expire(self, data: st.DataObject, length: int) -> None:
        start = data.draw(st.sampled_from(sorted(self.world.held)))
        self.world.expire(start, start + length)

    @rule(back=BACK)
    def expire_below(self, back: int) -> None:
        self.world.expire_below(max(START, self.world.end - back))

    @rule(by_ms=st.sampled_from([1, 600]))
    def move_clock(self, by_ms: int) -> None:
        self.world.move_clock(by_ms)

    @rule(back=BACK)
    def seek(self, back: int) -> None:
        self.world.seek(max(START, self.world.end - back))


def laws_of(
    kind: SubscriptionType, factory: Factory = make_reliable, laws: type[Laws] = Laws
) -> type[Laws]:
    return type(f"{kind}Laws", (laws,), {"kind": kind, "factory": staticmethod(factory)})


@pytest.mark.parametrize("laws", [Laws, TimelyLaws])
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "KeyShared"])
def test_a_dispatcher_keeps_every_law_in_every_life(
    kind: SubscriptionType, laws: type[Laws]
) -> None:
    run_state_machine_as_test(
        laws_of(kind, laws=laws),
        settings=settings(
            max_examples=120,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
