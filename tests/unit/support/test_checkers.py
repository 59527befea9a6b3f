"""Every check finds the violation it is for, and nothing in a history that has none."""

import pytest

from tests.support import checkers
from tests.support.checkers import Delivery, History, Outcome

TOPIC, NAME = "/default/t", "s"
PLACE = [(TOPIC, NAME)]


def send(history: History, value: str, offset: int | None, outcome: Outcome = Outcome.OK) -> None:
    history.sent(history.send(TOPIC, "p", value), outcome, offset)


def deliver(
    history: History, offset: int, value: str, *, stream: int = 1, opened: int = 0, attempt: int = 1
) -> None:
    history.deliveries.append(
        Delivery(TOPIC, NAME, stream, opened, offset, value, history.now(), attempt, key="k")
    )


def ack(history: History, offset: int, outcome: Outcome = Outcome.OK) -> None:
    history.acked(history.ack(TOPIC, NAME, offset), outcome)


@pytest.fixture
def sound() -> History:
    """Three messages, one of them of unknown fate, two streams, one redelivery."""
    history = History()
    for number in range(3):
        send(history, f"v{number}", number)
    send(history, "v3", None, Outcome.UNKNOWN)
    deliver(history, 0, "v0")
    ack(history, 0)
    deliver(history, 1, "v1")
    opened = history.now()
    deliver(history, 1, "v1", stream=2, opened=opened, attempt=2)
    ack(history, 1, Outcome.UNKNOWN)
    deliver(history, 2, "v2", stream=2, opened=opened)
    ack(history, 2)
    return history


def test_a_sound_history_has_no_violations(sound: History) -> None:
    assert checkers.violations(sound, PLACE) == []
    assert checkers.key_order(sound, PLACE) == []


@pytest.mark.parametrize(
    ("missing", "where"), [([0], "prefix"), ([1], "middle"), ([2], "postfix"), ([0, 1, 2], "every")]
)
def test_an_acknowledged_message_that_nobody_got_is_lost(missing: list[int], where: str) -> None:
    history = History()
    for number in range(3):
        send(history, f"v{number}", number)
        if number not in missing:
            deliver(history, number, f"v{number}")
    (found,) = checkers.violations(history, PLACE)
    assert found.startswith(f"lost: {len(missing)} of 3")
    assert where in found


def test_a_message_that_only_another_subscription_got_is_lost(sound: History) -> None:
    assert checkers.lost(sound, [(TOPIC, "other")])


def test_an_offset_with_two_values_is_found(sound: History) -> None:
    deliver(sound, 1, "v3", stream=3, opened=sound.now())
    assert [each.partition(":")[0] for each in checkers.violations(sound, PLACE)] == ["two values"]


def test_an_offset_that_was_acknowledged_for_two_values_is_found(sound: History) -> None:
    send(sound, "again", 2)
    assert any(each.startswith("two values") for each in checkers.two_values(sound))


def test_a_value_at_two_offsets_is_found(sound: History) -> None:
    deliver(sound, 9, "v0", stream=2)
    assert len(checkers.repeated_values(sound)) == 1


def test_a_failed_or_unknown_value_is_not_to_be_seen(sound: History) -> None:
    send(sound, "refused", None, Outcome.FAILED)
    deliver(sound, 4, "refused", stream=2)
    deliver(sound, 5, "invented", stream=2)
    assert len(checkers.unsent_values(sound)) == 2


def test_an_offset_below_one_acknowledged_earlier_is_found() -> None:
    history = History()
    send(history, "v0", 5)
    send(history, "v1", 4)
    assert len(checkers.send_order(history)) == 1


def test_sends_that_overlap_may_get_their_offsets_in_any_order() -> None:
    history = History()
    first, second = history.send(TOPIC, "p", "v0"), history.send(TOPIC, "q", "v1")
    history.sent(second, Outcome.OK, 0)
    history.sent(first, Outcome.OK, 1)
    assert checkers.send_order(history) == []


def test_new_messages_out_of_order_are_found(sound: History) -> None:
    deliver(sound, 1, "v1", stream=2, opened=0)
    assert len(checkers.delivery_order(sound)) == 1


def test_a_retry_may_come_late(sound: History) -> None:
    deliver(sound, 1, "v1", stream=2, opened=0, attempt=3)
    assert checkers.delivery_order(sound) == []


def test_a_key_that_runs_ahead_of_its_acks_is_found() -> None:
    history = History()
    deliver(history, 0, "v0")
    deliver(history, 1, "v1")
    assert len(checkers.key_order(history, PLACE)) == 1


def test_a_key_whose_older_message_comes_first_later_is_found() -> None:
    history = History()
    deliver(history, 1, "v1")
    ack(history, 1)
    deliver(history, 0, "v0")
    assert len(checkers.key_order(history, PLACE)) == 1


def test_an_acked_message_on_a_later_stream_is_found(sound: History) -> None:
    deliver(sound, 0, "v0", stream=3, opened=sound.now())
    assert len(checkers.acked_and_redelivered(sound)) == 1


def test_an_unanswered_ack_promises_nothing(sound: History) -> None:
    deliver(sound, 1, "v1", stream=3, opened=sound.now())
    assert checkers.acked_and_redelivered(sound) == []
