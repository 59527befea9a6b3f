"""What rebalancing remembers: enough for its limits, and never more than it may."""

import pytest

from pydanube.balance.decisions import Decision, Move, Outcome
from pydanube.balance.history import (
    DECISIONS_KEPT_MAX,
    MOVES_KEPT_MAX,
    History,
    decode_move,
    encode_move,
    restored_history,
    surplus_keys,
)
from pydanube.balance.imbalance import Balance
from pydanube.errors import Corruption
from pydanube.metadata.keys import rebalancing_move
from pydanube.model.ids import BrokerId
from tests.support.balance_builders import HOUR_MS, NOW_MS


def move(topic: str = "/default/orders") -> Move:
    return Move(
        topic=topic,
        source=BrokerId(1),
        target=BrokerId(2),
        estimated_load=1.5,
        reason="broker 1 has more",
    )


def decided(outcome: Outcome, reason: str = "because") -> Decision:
    balance = Balance(strategy="fair", coefficient_of_variation=0.5)
    return Decision(
        outcome=outcome, reason=reason, before=balance, after=balance, next_check_ms=NOW_MS
    )


def test_every_move_is_kept_with_its_reason() -> None:
    history = History().after_move(move(), NOW_MS).after_move(move("/a/b"), NOW_MS, "no quorum")
    first, second = history.moves
    assert (first.number, first.outcome, first.failure) == (1, "done", "")
    assert first.reason == "broker 1 has more"
    assert (second.number, second.outcome, second.failure) == (2, "failed", "no quorum")


def test_only_the_last_moves_are_kept_and_numbers_go_on() -> None:
    history = History()
    for index in range(MOVES_KEPT_MAX + 5):
        history = history.after_move(move(), NOW_MS + index)
    assert len(history.moves) == MOVES_KEPT_MAX
    assert history.moves[0].number == 6
    assert history.moves[-1].number == MOVES_KEPT_MAX + 5


def test_a_move_counts_for_an_hour() -> None:
    history = History().after_move(move(), NOW_MS)
    assert len(history.moves_in_the_hour_before(NOW_MS + HOUR_MS - 1)) == 1
    assert history.moves_in_the_hour_before(NOW_MS + HOUR_MS) == []


def test_the_same_decision_again_is_one_record() -> None:
    history = History()
    for index in range(3):
        history = history.after_decision(decided("balanced", f"look {index}"), NOW_MS + index)
    (record,) = history.decisions
    assert (record.count, record.first_ms, record.last_ms) == (3, NOW_MS, NOW_MS + 2)
    assert record.reason == "look 2"
    assert record.coefficient_of_variation == 0.5


def test_moves_are_records_of_their_own() -> None:
    history = History()
    for index in range(2):
        history = history.after_decision(decided("move"), NOW_MS + index)
    assert [each.count for each in history.decisions] == [1, 1]


def test_only_the_last_decisions_are_kept() -> None:
    history = History()
    for index in range(2 * DECISIONS_KEPT_MAX):
        history = history.after_decision(decided("move"), NOW_MS + index)
    assert len(history.decisions) == DECISIONS_KEPT_MAX
    assert history.decisions[-1].last_ms == NOW_MS + 2 * DECISIONS_KEPT_MAX - 1


@pytest.mark.parametrize(
    ("outcomes", "settling"),
    [
        ([], False),
        (["move"], True),
        (["move", "cooling_down", "hourly_limit"], True),
        (["hourly_limit"], False),
        (["move", "balanced"], False),
        (["move", "nothing_helps"], False),
        (["move", "too_few_brokers"], False),
        (["move", "disabled"], False),
        (["move", "not_due"], True),
    ],
)
def test_the_cluster_settles_from_the_first_move_until_it_rests(
    outcomes: list[Outcome], settling: bool
) -> None:
    history = History()
    for outcome in outcomes:
        history = history.after_decision(decided(outcome), NOW_MS)
    assert history.settling == settling


def test_a_look_that_was_not_due_leaves_no_trace() -> None:
    assert History().after_decision(decided("not_due"), NOW_MS) == History()


def test_a_new_leader_goes_on_with_the_moves_of_the_last_one() -> None:
    before = History()
    for index in range(3):
        before = before.after_move(move(f"/a/{index}"), NOW_MS + index)
    values = [encode_move(each) for each in reversed(before.moves)]
    after = restored_history(map(decode_move, values))
    assert after.moves == before.moves
    assert after.after_move(move(), NOW_MS + 9).moves[-1].number == 4


def test_numbers_go_on_after_a_clock_that_was_set_back() -> None:
    history = History().after_move(move("/a/1"), NOW_MS).after_move(move("/a/2"), NOW_MS - HOUR_MS)
    restored = restored_history(history.moves)
    assert restored.after_move(move(), NOW_MS).moves[-1].number == 3


def test_the_oldest_records_leave_the_metadata() -> None:
    keys = [rebalancing_move(NOW_MS + 10 * index, index) for index in range(MOVES_KEPT_MAX + 2)]
    assert surplus_keys(reversed(keys)) == keys[:2]
    assert surplus_keys(keys[2:]) == []


@pytest.mark.parametrize("value", [b"", b"[]", b'{"number": 1}'])
def test_what_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(Corruption, match="rebalancing record"):
        decode_move(value)
