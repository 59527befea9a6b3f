"""What keeps a subscription from going on, and what is said about it: once."""

import pytest

from pydanube.dispatch.events import BlockedMessage
from pydanube.model.ids import Offset
from pydanube.model.policies import FailurePolicy
from pydanube.subscriptions.troubles import Progress, Troubles, patience_ms

POLICY = FailurePolicy(ack_timeout_ms=1_000, max_redelivery_delay_ms=40_000)
PATIENCE_MS = 80_000


def troubles(*, by_key: bool = False) -> Troubles:
    return Troubles("/default/orders", "billing", by_key=by_key)


def blocked(offset: int = 5, reason: str | None = "no Order") -> BlockedMessage:
    return BlockedMessage(Offset(offset), 6, reason)


def progress(settlements: int, pending: int = 3, consumers: int = 1) -> Progress:
    return Progress(
        settlements=settlements, pending=pending, active_consumers=consumers, policy=POLICY
    )


def test_a_block_is_told_with_all_that_helps_and_its_end_too() -> None:
    judge = troubles()
    line = judge.block_changed(1, blocked())
    assert line is not None
    assert line.is_bad
    assert line.fields == {
        "topic": "/default/orders",
        "subscription": "billing",
        "offset": 5,
        "attempts": 6,
        "blocked": 1,
        "reason": "no Order",
        "next": "danube topics set-failure-policy /default/orders -s billing "
        "--poison-policy dead_letter (or drop)",
    }
    assert judge.block_changed(3, blocked(2)) is None, "it is known that it is blocked"
    assert judge.present is not None
    assert (judge.present.state, judge.present.offset) == ("blocked", 2)
    over = judge.block_changed(0, None)
    assert over is not None
    assert not over.is_bad
    assert judge.present is None
    assert judge.block_changed(1, blocked()) is not None, "it is another block"


def test_a_strangers_reason_is_one_line_of_bounded_length() -> None:
    judge = troubles()
    line = judge.block_changed(1, blocked(reason="a\nlevel=error b\x1b[2J" + "x" * 1_000))
    assert line is not None
    reason = str(line.fields["reason"])
    assert reason.isprintable()
    assert reason.startswith("a level=error b [2J")
    assert len(reason) < 250
    line = troubles().block_changed(1, blocked(reason=None))
    assert line is not None
    assert line.fields["reason"] == "not given"


def test_keys_that_are_blocked_later_are_told_together_at_the_next_look() -> None:
    judge = troubles(by_key=True)
    assert judge.block_changed(1, blocked()) is not None
    assert judge.block_changed(2, blocked()) is None
    line = judge.look(progress(1), 0)
    assert line is not None
    assert (line.event, line.fields["blocked"]) == ("more keys of a subscription are blocked", 2)
    assert judge.look(progress(2), 1) is None


def test_what_settles_nothing_for_as_long_as_it_may_take_is_stalled_until_it_does() -> None:
    judge = troubles()
    assert patience_ms(POLICY) == PATIENCE_MS
    assert patience_ms(FailurePolicy(ack_timeout_ms=1, max_redelivery_delay_ms=1)) == 60_000
    assert judge.look(progress(7), 0) is None
    assert judge.look(progress(7), 100) is None
    assert judge.look(progress(7), 99 + PATIENCE_MS) is None
    line = judge.look(progress(7), 100 + PATIENCE_MS)
    assert line is not None
    assert line.is_bad
    assert judge.look(progress(7), 200 + PATIENCE_MS) is None, "once"
    assert judge.present is not None
    assert "80 s" in (judge.present.reason or "")
    over = judge.look(progress(8), 300 + PATIENCE_MS)
    assert over is not None
    assert not over.is_bad
    assert judge.present is None


@pytest.mark.parametrize(("pending", "consumers"), [(0, 1), (3, 0)])
def test_without_messages_or_consumers_nothing_is_stalled(pending: int, consumers: int) -> None:
    judge = troubles()
    for time_ms in range(0, 10 * PATIENCE_MS, PATIENCE_MS // 2):
        assert judge.look(progress(7, pending, consumers), time_ms) is None
    assert judge.present is None


def test_what_the_broker_cannot_do_stalls_until_it_can() -> None:
    judge = troubles()
    line = judge.hindered("dead letters", "no room", "look there")
    assert line is not None
    assert (line.fields["reason"], line.fields["next"]) == ("no room", "look there")
    assert judge.hindered("dead letters", "still no room", "look there") is None
    assert judge.present is not None
    assert (judge.present.state, judge.present.reason) == ("stalled", "still no room")
    assert judge.block_changed(1, blocked()) is not None, "that needs somebody to decide"
    assert judge.present.state == "blocked"
    judge.block_changed(0, None)
    assert judge.freed("keys") is None
    assert judge.freed("dead letters") is not None
    assert judge.present is None
