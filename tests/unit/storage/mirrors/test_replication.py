"""What a topic may acknowledge, by which journals have it."""

import pytest

from pydanube.model.ids import BrokerId
from pydanube.storage.mirrors.replication import (
    Answer,
    Replication,
    answers_needed,
    choose_answer,
    majority,
    plan_members,
)

OWN, ONE, TWO, THREE = map(BrokerId, (1, 2, 3, 4))


def recorded(*members: BrokerId, records: int = 3) -> Replication:
    core = Replication(OWN)
    core.begin_change(members)
    core.end_change(recorded=True)
    for _ in range(records):
        core.add()
    return core


def synced_up_to(core: Replication, number: int) -> None:
    for each in range(core.own_synced + 1, number + 1):
        core.synced(each)


@pytest.mark.parametrize(("members", "more_than_half"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_and_enough_answers_always_meet(members: int, more_than_half: int) -> None:
    assert majority(members) == more_than_half
    assert majority(members) + answers_needed(members) == members + 1


def test_nothing_is_acknowledged_before_a_set_is_recorded() -> None:
    core = Replication(OWN)
    core.add()
    core.synced(1)
    core.begin_change([OWN, ONE])
    core.has(ONE, 1)
    assert core.acknowledged == 0
    core.end_change(recorded=True)
    assert core.acknowledged == 1


def test_an_owner_alone_goes_on_until_its_first_mirror_is_to_be_recorded() -> None:
    core = Replication(OWN, (OWN,))
    core.add()
    core.synced(1)
    assert core.acknowledged == 1
    core.begin_change([OWN, ONE])
    core.add()
    core.synced(2)
    assert core.acknowledged == 1
    assert not core.is_covered
    core.has(ONE, 2)
    assert core.is_covered
    core.end_change(recorded=True)
    core.add()
    core.synced(3)
    assert core.acknowledged == 2


def test_of_two_both_are_needed() -> None:
    core = recorded(OWN, ONE)
    synced_up_to(core, 3)
    assert core.acknowledged == 0
    core.has(ONE, 2)
    assert core.acknowledged == 2


def test_the_owners_own_journal_is_always_needed() -> None:
    core = recorded(OWN, ONE, TWO)
    core.has(ONE, 3)
    core.has(TWO, 3)
    assert core.acknowledged == 0
    synced_up_to(core, 1)
    assert core.acknowledged == 1


def test_records_that_are_synced_out_of_order_count_once_those_before_are() -> None:
    core = recorded(OWN)
    core.synced(3)
    core.synced(2)
    assert core.acknowledged == 0
    core.synced(1)
    assert core.acknowledged == 3


def test_the_third_mirror_may_be_slow() -> None:
    core = recorded(OWN, ONE, TWO)
    synced_up_to(core, 3)
    core.has(ONE, 3)
    assert core.acknowledged == 3
    assert core.position(TWO) == 0


def test_both_majorities_are_needed_while_the_set_changes() -> None:
    core = recorded(OWN, ONE)
    synced_up_to(core, 3)
    core.has(ONE, 1)
    core.begin_change([OWN, TWO])
    core.has(TWO, 0)
    core.has(ONE, 3)
    assert core.acknowledged == 1
    assert not core.is_covered
    core.has(TWO, 2)
    assert core.is_covered
    assert core.acknowledged == 2
    core.end_change(recorded=True)
    core.has(TWO, 3)
    assert core.acknowledged == 3


def test_a_change_that_was_not_recorded_leaves_the_set_as_it_was() -> None:
    core = recorded(OWN, ONE)
    synced_up_to(core, 3)
    core.begin_change([OWN])
    core.end_change(recorded=False)
    assert core.members == (OWN, ONE)
    assert core.acknowledged == 0


def test_a_set_that_shrinks_goes_on_with_who_is_left() -> None:
    core = recorded(OWN, ONE)
    synced_up_to(core, 3)
    core.begin_change([OWN])
    assert core.is_covered
    assert core.acknowledged == 0
    core.end_change(recorded=True)
    assert core.acknowledged == 3


def test_a_mirror_that_lost_its_disk_counts_for_nothing_new() -> None:
    core = recorded(OWN, ONE, records=2)
    synced_up_to(core, 2)
    core.has(ONE, 2)
    core.begins(ONE, 0)
    core.add()
    core.synced(3)
    assert core.acknowledged == 2
    assert core.position(ONE) == 0


def test_late_answers_do_not_take_a_mirror_back() -> None:
    core = recorded(OWN, ONE)
    core.has(ONE, 3)
    core.has(ONE, 1)
    assert core.position(ONE) == 3


# Who keeps copies.


def test_who_works_stays_and_who_is_free_takes_the_place_of_who_does_not() -> None:
    assert plan_members(OWN, [OWN, ONE, TWO], {ONE}, [THREE], 3) == (OWN, TWO, THREE)


def test_without_anybody_free_the_set_shrinks_and_later_grows() -> None:
    assert plan_members(OWN, [OWN, ONE], {ONE}, [], 2) == (OWN,)
    assert plan_members(OWN, [OWN], set(), [ONE], 2) == (OWN, ONE)


def test_fewer_wanted_copies_leave_the_first_members() -> None:
    assert plan_members(OWN, [OWN, ONE, TWO], set(), [], 2) == (OWN, ONE)


# Whose copy holds everything.


def answer(broker: BrokerId, **rest: int | None) -> Answer:
    told = {"epoch": 5, "stream": 9, "sequence": 0, "end": 0} | rest
    return Answer(broker=broker, **told)  # type: ignore[arg-type]


def chosen(members: list[BrokerId], *answers: Answer) -> BrokerId | None:
    best = choose_answer(5, members, {each.broker: each for each in answers})
    return best.broker if best is not None else None


def test_one_of_two_is_enough_and_one_of_three_is_not() -> None:
    assert chosen([OWN, ONE], answer(ONE)) == ONE
    assert chosen([OWN, ONE, TWO], answer(ONE)) is None
    assert chosen([OWN, ONE, TWO], answer(ONE), answer(TWO)) is not None


def test_the_copy_with_the_most_of_the_newest_epoch_is_taken() -> None:
    members = [OWN, ONE, TWO]
    assert chosen(members, answer(ONE, sequence=7), answer(TWO, sequence=8)) == TWO
    # More batches without their numbers come from an owner that was bringing the mirror up.
    assert chosen(members, answer(ONE, sequence=7, end=90), answer(TWO, sequence=8, end=80)) == TWO


def test_the_owners_own_journal_goes_before_its_mirrors() -> None:
    members = [OWN, ONE, TWO]
    assert chosen(members, answer(ONE, sequence=70), answer(OWN, stream=0)) == OWN


def test_who_has_lost_its_copy_does_not_count() -> None:
    members = [OWN, ONE, TWO]
    assert chosen(members, answer(ONE, sequence=7), answer(TWO, sequence=None)) is None
    assert chosen(members, answer(ONE, sequence=7), answer(TWO, epoch=0)) is None
    assert chosen(members, answer(ONE, sequence=7), answer(THREE)) is None


def test_a_later_epoch_says_that_everything_before_is_in_segments() -> None:
    assert chosen([OWN, ONE, TWO], answer(ONE, epoch=6)) == ONE
    assert chosen([OWN, ONE, TWO], answer(ONE, epoch=6, sequence=None)) is None
