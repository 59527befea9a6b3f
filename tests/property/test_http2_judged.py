"""Random conversations: h2 and our codec agree on what is allowed, and noise breaks nothing.

`tools/fuzz_http2.py` runs the same with as many seeds as wanted.
"""

from collections import Counter

from tests.support.http2_judge import DIFFERENCES, run, run_client_noise, run_noise

SEEDS = range(2_500)


def test_what_h2_accepts_we_accept_and_the_other_way_round():
    outcomes = {seed: run(seed) for seed in SEEDS}
    unexplained = {
        seed: outcome.difference
        for seed, outcome in outcomes.items()
        if outcome.difference is not None and outcome.difference not in DIFFERENCES
    }
    assert not unexplained
    verdicts = Counter(
        (outcome.ours is not None, outcome.theirs is not None) for outcome in outcomes.values()
    )
    # Neither good nor bad conversations are so rare that agreeing on them would mean nothing.
    assert verdicts[False, False] > len(SEEDS) // 5
    assert verdicts[True, True] > len(SEEDS) // 5
    assert sum(outcome.difference is not None for outcome in outcomes.values()) < len(SEEDS) // 20


def test_noise_raises_nothing_holds_little_and_leaves_nothing_behind():
    served = sum(run_noise(seed) for seed in SEEDS)
    assert served > len(SEEDS) // 2


def test_noise_from_a_server_ends_every_call_exactly_once():
    ended_well = sum(run_client_noise(seed) for seed in SEEDS)
    assert ended_well > len(SEEDS) // 10
