"""Whole clusters under faults, by seed.

DANUBE_CLUSTER_SEEDS and DANUBE_SEED_START choose how many seeds and which; one seed alone is
replayed by the command that a failure prints.
"""

import os
from pathlib import Path

import pytest

from tests.support import cluster_seeds
from tests.support.cluster_plans import ClusterFaults
from tests.support.cluster_world import ClusterWorld

SEEDS = int(os.environ.get("DANUBE_CLUSTER_SEEDS", "20"))
FIRST = int(os.environ.get("DANUBE_SEED_START", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_every_law_holds_for_seeds(seed: int) -> None:
    outcome = ClusterWorld(seed).check()
    print(f"{outcome.operations} operations checked, {outcome.boots} starts, {outcome.faults}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 7))
def test_every_law_holds_when_brokers_are_killed(seed: int) -> None:
    outcome = ClusterWorld(seed, ClusterFaults.only("kill")).check()
    assert outcome.operations > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_brokers_that_run_out_of_room_need_no_restart(seed: int) -> None:
    outcome = ClusterWorld(seed, ClusterFaults.only("room")).check()
    assert outcome.boots == ClusterWorld(seed, ClusterFaults.only("room")).plan.brokers


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
def test_every_law_holds_when_brokers_run_out_of_room_and_of_power(seed: int) -> None:
    ClusterWorld(seed, ClusterFaults.only("room", "power", "move")).check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 3))
def test_in_a_calm_cluster_everything_comes_once_and_at_once(seed: int) -> None:
    outcome = ClusterWorld(seed, ClusterFaults()).check()
    assert outcome.boots == ClusterWorld(seed).plan.brokers


@pytest.mark.slow
def test_a_mirror_that_comes_back_with_less_follows_again() -> None:
    """All that it lacked was in segments by then, and nothing was sent to it."""
    ClusterWorld.plain(109).check()


@pytest.mark.slow
def test_a_seed_does_the_same_twice() -> None:
    assert ClusterWorld(5).run().trace == ClusterWorld(5).run().trace


@pytest.mark.slow
def test_nobody_misses_the_failure_of_a_write_whose_caller_has_gone() -> None:
    ClusterWorld.plain(15, "pause", replicas=2, gap_seconds=1.0).check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3030, 3083, 4061])
def test_an_object_that_may_be_in_the_catalogue_is_not_deleted(seed: int) -> None:
    """The answer to its entry was lost: that its topic went elsewhere meanwhile tells nothing."""
    ClusterWorld.plain(seed).check()


@pytest.mark.slow
def test_a_message_under_way_when_its_topic_is_taken_over_is_not_called_refused() -> None:
    """A mirror has it, and the next owner may go by that mirror."""
    ClusterWorld(41032).check()


@pytest.mark.slow
def test_a_broker_that_registers_anew_is_not_certain_of_what_it_had_before() -> None:
    """Its topic was opened elsewhere while it was handing it over."""
    ClusterWorld(46082).check()


@pytest.mark.slow
def test_an_owner_that_was_in_doubt_for_a_moment_serves_again() -> None:
    """It was sure of its place again before it could let go, and its log took nothing more."""
    ClusterWorld.plain(10725).check()


@pytest.mark.slow
def test_a_producer_let_in_while_its_topic_left_is_not_remembered() -> None:
    ClusterWorld.plain(10810).check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4094, 10586])
def test_messages_of_a_closed_consumer_are_settled_where_their_topic_is(seed: int) -> None:
    ClusterWorld.plain(seed).check()


@pytest.mark.slow
def test_a_run_of_seeds_keeps_a_line_for_each(tmp_path: Path) -> None:
    log = tmp_path / "seeds.txt"
    assert cluster_seeds.main(["--first", "16", "--count", "1", "--log", str(log)]) == 0
    assert log.read_text().startswith("16 ok")
