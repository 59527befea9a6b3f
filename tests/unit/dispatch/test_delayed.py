import pytest

from pydanube.dispatch.events import (
    Available,
    ConsumerJoined,
    Deliver,
    DispatchSettings,
    KeysRead,
    Postponed,
    ReadKeys,
    TimePassed,
)
from pydanube.dispatch.factory import create_dispatcher
from pydanube.dispatch.redelivery import Waiting
from pydanube.model.ids import ConsumerId, Offset
from pydanube.model.policies import FailurePolicy, SubscriptionType
from pydanube.model.progress import Progress


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "KeyShared"])
def test_when_too_many_messages_are_delayed_the_rest_stays_in_the_log(
    kind: SubscriptionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pydanube.dispatch.ordered.DELAYED_MAX", 4)
    monkeypatch.setattr("pydanube.dispatch.key_shared.DELAYED_MAX", 4)
    monkeypatch.setattr("pydanube.dispatch.key_shared._READ_COUNT_MIN", 1)
    settings = DispatchSettings(window=2, policy=FailurePolicy())
    dispatcher = create_dispatcher(kind, True, Progress(Offset(0)), settings, Offset(0))
    delivered: list[int] = []

    def feed(event: object, now_ms: int, *, postpone_until: int | None) -> None:
        events = [event]
        while events:
            for action in dispatcher.handle(events.pop(0), now_ms):  # type: ignore[arg-type]
                if isinstance(action, ReadKeys):
                    keys = [str(action.start + at) for at in range(action.count)]
                    events.append(KeysRead(action.start, keys))
                elif isinstance(action, Deliver):
                    delivered.extend(range(action.start, action.end))
                    if postpone_until is not None:
                        events.append(Postponed(action.start, action.end, postpone_until))

    feed(ConsumerJoined(ConsumerId(1), 100), 0, postpone_until=None)
    feed(Available(Offset(20)), 0, postpone_until=500)
    assert dispatcher.delayed_count == 4
    assert delivered == [0, 1, 2, 3]
    feed(TimePassed(), 499, postpone_until=None)
    assert len(delivered) == 4
    feed(TimePassed(), 500, postpone_until=None)
    assert delivered[4:] == [0, 1]


def test_what_waits_for_a_time_can_be_hurried() -> None:
    waiting = Waiting()
    waiting.schedule(0, 3, attempts=0, due_ms=100)
    waiting.schedule(3, 4, attempts=1, due_ms=200)
    waiting.make_ready(7, 8, attempts=2)
    waiting.hurry(60)
    assert waiting.next_due_ms() == 40
    assert waiting.take_due(40) == [(0, 3, 0)]
    assert waiting.take_due(139) == []
    assert waiting.take_due(140) == [(3, 4, 1)]
    assert waiting.take_ready(7, 8) == 2
    assert waiting.take_ready(7, 8) is None
    assert waiting.count == 0


def test_a_message_that_was_never_delivered_is_ready_all_the_same() -> None:
    waiting = Waiting()
    waiting.make_ready(5, 6, attempts=0)
    assert waiting.is_ready(5)
    assert waiting.take_ready(5, 6) == 0
    assert not waiting.is_ready(5)
