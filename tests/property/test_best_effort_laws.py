"""A best-effort dispatcher deals out as if one by one, and loses only what it must."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pydanube.dispatch.best_effort import BestEffortKeySharedDispatcher, BestEffortSharedDispatcher
from pydanube.dispatch.events import (
    Available,
    ConsumerJoined,
    ConsumerLeft,
    Deliver,
    Discard,
    DispatchSettings,
    KeysRead,
)
from pydanube.dispatch.shared import SharedDispatcher
from pydanube.model.ids import ConsumerId, Offset
from pydanube.model.policies import FailurePolicy
from pydanube.model.progress import Progress

CREDITS = st.lists(st.integers(0, 9), min_size=1, max_size=4)
BATCHES = st.lists(st.integers(1, 15), min_size=1, max_size=6)


def dealt_one_by_one(credits: list[int], count: int) -> Counter[int]:
    """Probe the consumers in turn for each message, as the protocol describes it."""
    left, turn, dealt = list(credits), 0, Counter[int]()
    for _ in range(count):
        for _ in range(len(left)):
            place, turn = turn % len(left), turn + 1
            if left[place]:
                left[place] -= 1
                dealt[place + 1] += 1
                break
    return dealt


@given(CREDITS, BATCHES)
def test_shared_consumers_get_as_many_as_one_by_one(credits: list[int], batches: list[int]) -> None:
    settings = DispatchSettings(window=10_000, policy=FailurePolicy())
    for dispatcher in (
        BestEffortSharedDispatcher(Progress(Offset(0))),
        SharedDispatcher(Progress(Offset(0)), settings, Offset(0)),
    ):
        for consumer, credit in enumerate(credits, 1):
            dispatcher.handle(ConsumerJoined(ConsumerId(consumer), credit), 0)
        dealt, next_offset, end = Counter[int](), 0, 0
        for batch in batches:
            end += batch
            for action in dispatcher.handle(Available(Offset(end)), 0):
                assert isinstance(action, Deliver | Discard)
                assert action.start == next_offset, "an offset was passed over"
                next_offset = action.end
                if isinstance(action, Deliver):
                    dealt[action.consumer] += action.end - action.start
        assert dealt == dealt_one_by_one(credits, end)


@given(
    CREDITS,
    st.lists(
        st.one_of(
            st.lists(st.sampled_from("abcdef"), min_size=1, max_size=8),
            st.integers(1, 4),
            st.just(None),
        ),
        max_size=12,
    ),
)
def test_a_key_has_one_owner_and_every_message_one_fate(
    credits: list[int], steps: list[list[str] | int | None]
) -> None:
    dispatcher = BestEffortKeySharedDispatcher(Progress(Offset(0)))
    for consumer, credit in enumerate(credits, 1):
        dispatcher.handle(ConsumerJoined(ConsumerId(consumer), credit), 0)
    left = dict(enumerate(credits, 1))
    owners: dict[str, int] = {}
    now_ms, offset = 0, 0
    for step in steps:
        if step is None:
            now_ms += 3_000
            continue
        if isinstance(step, int):
            dispatcher.handle(ConsumerLeft(ConsumerId(step)), now_ms)
            left[step] = 0
            # From here on keys may move.
            owners.clear()
            continue
        next_offset = offset
        for action in dispatcher.handle(KeysRead(Offset(offset), step), now_ms):
            assert isinstance(action, Deliver | Discard)
            assert action.start == next_offset
            next_offset = action.end
            if isinstance(action, Deliver):
                left[action.consumer] -= action.end - action.start
                assert left[action.consumer] >= 0
                for at in range(action.start, action.end):
                    key = step[at - offset]
                    assert owners.setdefault(key, action.consumer) == action.consumer
        offset += len(step)
        assert next_offset == offset == dispatcher.cursor
