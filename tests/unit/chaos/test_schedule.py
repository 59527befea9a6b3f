"""What a seed means is known before anything is started."""

import pytest

from tests.chaos.schedule import (
    BROKERS,
    FAULTS,
    ONE_COPY,
    SUBSCRIPTIONS,
    TOPIC_DEEDS,
    Schedule,
    draw_schedule,
    quiet_share,
)

SECONDS = 1200.0
SEEDS = [str(number) for number in range(40)]


@pytest.fixture(params=SEEDS)
def schedule(request: pytest.FixtureRequest) -> Schedule:
    return draw_schedule(request.param, SECONDS, "object_store")


def test_the_same_seed_draws_the_same_schedule() -> None:
    first, again = (draw_schedule("S", SECONDS, "local") for _ in range(2))
    assert first == again
    assert str(first) == str(again)


def test_another_seed_draws_another_schedule() -> None:
    assert draw_schedule("S", SECONDS, "local").harm != draw_schedule("T", SECONDS, "local").harm


def test_both_storage_modes_have_a_schedule_of_their_own() -> None:
    modes = [draw_schedule("S", SECONDS, mode) for mode in ("local", "object_store")]
    assert modes[0].harm != modes[1].harm


def test_a_long_run_has_every_fault_and_every_deed(schedule: Schedule) -> None:
    assert {step.kind for step in schedule.harm} == set(FAULTS)
    assert {step.kind for step in schedule.deeds} == set(TOPIC_DEEDS)


def test_every_fault_comes_once_before_any_comes_again(schedule: Schedule) -> None:
    first = [step.kind for step in schedule.harm[: len(FAULTS)]]
    assert sorted(first) == sorted(FAULTS)


def test_a_quarter_of_the_time_nothing_is_done_to_brokers(schedule: Schedule) -> None:
    assert quiet_share(schedule) > 0.25


def test_faults_follow_each_other_and_end_in_time(schedule: Schedule) -> None:
    over = 0.0
    for step in schedule.harm:
        assert step.at >= over
        assert step.seconds > 0
        over = step.at + step.seconds
    assert over <= SECONDS


def test_now_and_then_all_brokers_are_harmed(schedule: Schedule) -> None:
    counts = {len(step.brokers) for step in schedule.harm}
    assert counts == {1, 2, BROKERS}
    alone = ("partition", "EIO", "ENOSPC", "slow sync", "stuck sync", "disk loss")
    assert all(len(step.brokers) == 1 for step in schedule.harm if step.kind in alone)


def test_without_copies_no_disk_is_lost() -> None:
    harm = draw_schedule("S", SECONDS, "local").harm
    assert {step.kind for step in harm} == set(ONE_COPY)


def test_topics_have_two_and_three_copies_where_there_are_copies() -> None:
    copied = draw_schedule("S", SECONDS, "object_store", topics=4).topics
    assert [topic.replicas for topic in copied] == [2, 3, 2, 3]
    assert {topic.replicas for topic in draw_schedule("S", SECONDS, "local").topics} == {1}


def test_deeds_meet_every_topic_and_subscription(schedule: Schedule) -> None:
    assert {step.topic for step in schedule.deeds} == set(range(len(schedule.topics)))
    assert {step.subscription for step in schedule.deeds} == set(range(len(SUBSCRIPTIONS)))


def test_only_what_is_asked_for_is_drawn() -> None:
    schedule = draw_schedule("S", SECONDS, "local", faults=["kill"], deeds=[])
    assert {step.kind for step in schedule.harm} == {"kill"}
    assert schedule.deeds == ()
