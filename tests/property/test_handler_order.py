"""The law of handlers: a key's messages succeed in order, whatever fails, repeats or comes late."""

import heapq
from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pydanube.client.lanes import Entry, Lanes

ATTEMPTS_MAX = 3
FOR_EVER_MS = 1_000_000

messages = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, ATTEMPTS_MAX)), min_size=1, max_size=30
)
"""The key of each, and how often it fails; with ATTEMPTS_MAX it is dead."""


class Subscription:
    """Delivers in order, what failed again after a while, and now and then something twice."""

    def __init__(self, wanted: Sequence[tuple[str, int]]) -> None:
        self.wanted = wanted
        self.due = [(0, offset) for offset in range(len(wanted))]
        self.failures = [0] * len(wanted)
        self.unsettled = set(range(len(wanted)))

    def deliver(self, lanes: Lanes[int], now: int, count: int) -> None:
        for _ in range(count):
            if self.due and self.due[0][0] <= now:
                _, offset = heapq.heappop(self.due)
                lanes.arrived(self.wanted[offset][0], offset, offset)


@given(messages, st.integers(0, 2**32))
def test_a_key_succeeds_in_order_under_failures_repeats_and_late_deliveries(
    wanted: list[tuple[str, int]], seed: int
) -> None:
    chance = Random(seed)
    lanes: Lanes[int] = Lanes()
    subscription = Subscription(wanted)
    running: list[list[Entry[int]]] = []
    succeeded: list[int] = []
    most = chance.choice([1, 4])
    now = 0
    while subscription.unsettled:
        now += 1
        assert now < 5_000, "it comes to an end"
        subscription.deliver(lanes, now, chance.randint(0, 5))
        if running and chance.random() < 0.3:
            known = chance.choice(running[0])
            lanes.arrived(wanted[known.offset][0], known.offset, known.offset)
        while len(running) < 3 and (entries := lanes.take(most)):
            running.append(entries)
        keys = [wanted[entry.offset][0] for entries in running for entry in entries]
        if most == 1:
            assert len(set(keys)) == len(keys), "one of a key at a time"
        if running:
            ended = running.pop(chance.randint(0, len(running) - 1))
            settle(ended, lanes, subscription, succeeded, now, chance)
    assert not lanes.in_hand
    assert not lanes._lanes, "nothing is kept of keys that are done"
    for key in "abc":
        own = [offset for offset in succeeded if wanted[offset][0] == key]
        assert own == sorted(own)
    assert sorted(succeeded) == [n for n, (_, fails) in enumerate(wanted) if fails < ATTEMPTS_MAX]


def settle(
    entries: list[Entry[int]],
    lanes: Lanes[int],
    subscription: Subscription,
    succeeded: list[int],
    now: int,
    chance: Random,
) -> None:
    """End a call: all of it succeeds, or all of it fails, as with lists."""
    failing = [
        entry.offset
        for entry in entries
        if subscription.failures[entry.offset] < subscription.wanted[entry.offset][1]
    ]
    if not failing:
        succeeded += [entry.offset for entry in entries]
        subscription.unsettled -= {entry.offset for entry in entries}
        lanes.settled(entries)
        return
    until: list[int | None] = []
    for entry in entries:
        # What fails only along with another one is not held against it.
        subscription.failures[entry.offset] += entry.offset in failing
        if subscription.failures[entry.offset] >= ATTEMPTS_MAX:
            subscription.unsettled.discard(entry.offset)
            until.append(None)
        else:
            due = now + chance.randint(1, 10)
            heapq.heappush(subscription.due, (due, entry.offset))
            until.append(FOR_EVER_MS)
    lanes.settled(entries, until)


def test_what_never_comes_again_holds_its_key_back_for_so_long_only() -> None:
    lanes: Lanes[int] = Lanes()
    for offset in range(2):
        lanes.arrived("a", offset, offset)
    [first] = lanes.take()
    lanes.settled([first], [1_000])
    assert not lanes.has_ready()
    lanes.expire(999)
    assert not lanes.has_ready()
    lanes.expire(1_000)
    [second] = lanes.take()
    lanes.settled([second])
    assert (second.offset, lanes.in_hand, lanes.awaited) == (1, 0, 0)
    assert not lanes._lanes
