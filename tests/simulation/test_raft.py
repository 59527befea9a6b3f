"""Raft clusters under faults, by seed, without an event loop: the core and a driver in small steps.

DANUBE_RAFT_SEEDS and DANUBE_SEED_START choose how many seeds and which.
"""

import os
from collections import Counter

import pytest

from tests.support.linearizability import READ, SWAP, WRITE, Operation, Undecided, is_linearizable
from tests.support.raft_world import Profile, RaftWorld, check

SEEDS = int(os.environ.get("DANUBE_RAFT_SEEDS", "160"))
FIRST = int(os.environ.get("DANUBE_SEED_START", "1"))
GROUP = 40

KINDS = {
    "calm": Profile(
        crashes=0.01, partitions=0.0, one_way=0.0, pauses=0.0, transfers=0.0, members=0.0, loss=0.0
    ),
    "members": Profile(members=6.0, partitions=2.0, crashes=0.5),
    "slow disks": Profile(disk_ms=15.0, crashes=3.0),
    "many snapshots": Profile(snapshot_entries=3, crashes=2.0),
    "one node": Profile(nodes=1, extra=1),
    "seven nodes": Profile(nodes=7, extra=0, members=0.0),
    "unlucky leaders": Profile(crash_at_election=0.5, crash_at_commit=0.2, append_bytes_max=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, GROUP))
def test_every_law_holds_for_seeds(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, min(first + GROUP, FIRST + SEEDS)):
        world = check(seed)
        counts.update(world.counts)
        counts["applied"] += world.laws.last_applied
        counts["elections"] += world.laws.elections
    print(f"seeds from {first}: {dict(counts)}")
    assert counts["applied"] > 0
    # A history the checker gave up on was not checked; the worlds are made so that it decides.
    assert counts["histories"] > 0
    assert counts["undecided"] * 100 <= counts["histories"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_law_holds_in_a_world_with(kind: str) -> None:
    for seed in range(10):
        check(seed, KINDS[kind])


def test_a_seed_does_the_same_twice() -> None:
    lives = [RaftWorld(7).run() for _ in range(2)]
    assert lives[0].counts == lives[1].counts
    assert lives[0].history == lives[1].history
    assert lives[0].history != RaftWorld(8).run().history


def test_a_world_sees_every_kind_of_fault() -> None:
    counts: Counter[str] = Counter()
    for seed in range(10):
        counts.update(check(seed).counts)
    kinds = ("crashes", "partitions", "one-way cuts", "pauses", "transfers", "changes", "lost")
    assert all(counts[kind] for kind in kinds), counts


def test_a_history_that_takes_too_long_to_judge_is_not_called_good() -> None:
    # Forty writes at the same time, all seen, and a last read of none: only trying tells.
    writes = [Operation(WRITE, str(number), 0, 100) for number in range(40)]
    reads = [read(str(number), 0, 100) for number in range(40)]
    with pytest.raises(Undecided):
        is_linearizable([*writes, *reads, read("never", 200, 201)])


def read(value: object, began: float, ended: float) -> Operation:
    return Operation(READ, value, began, ended)


def test_a_read_may_see_a_write_that_runs_beside_it() -> None:
    write = Operation(WRITE, "1", 0, 10)
    assert is_linearizable([write, read(None, 1, 2), read("1", 3, 4)])
    assert not is_linearizable([write, read("1", 1, 2), read(None, 3, 4)])


def test_a_read_after_a_write_sees_it() -> None:
    assert not is_linearizable([Operation(WRITE, "1", 0, 1), read(None, 2, 3)])


def test_a_write_without_an_answer_may_happen_at_any_later_time_or_never() -> None:
    write = Operation(WRITE, "1", 0)
    assert is_linearizable([write, read(None, 5, 6)])
    assert is_linearizable([write, read(None, 5, 6), read("1", 7, 8)])
    assert not is_linearizable([write, read("1", 5, 6), read(None, 7, 8)])


def test_a_swap_happens_only_on_what_it_expects() -> None:
    writes = [Operation(WRITE, "1", 0, 1)]
    assert is_linearizable([*writes, Operation(SWAP, "2", 2, 3, expected="1"), read("2", 4, 5)])
    assert not is_linearizable([*writes, Operation(SWAP, "2", 2, 3, expected="0")])
    refused = Operation(SWAP, "2", 2, 3, expected="1", happened=False)
    assert not is_linearizable([*writes, refused])
