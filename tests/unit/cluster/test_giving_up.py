"""What becomes of the state of a broker that could not write."""

import pytest

from pydanube.cluster.giving_up import (
    CANNOT_WRITE,
    CANNOT_WRITE_AGAIN,
    RECOVERED,
    TRUSTED_MS,
    state_at_start,
    state_given_up,
)
from pydanube.cluster.records import BrokerRecord, BrokerState

PLACE = BrokerRecord(broker_url="http://x:1", connect_url="http://x:1", admin_url="http://x:2")
NOW = 10_000_000


def test_who_gives_up_takes_topics_again_once_it_has_recovered() -> None:
    given_up = state_given_up(None, "ill", NOW, PLACE)
    assert given_up == BrokerState(
        mode="drained", reason=CANNOT_WRITE, why="ill", time_ms=NOW, place=PLACE
    )
    assert state_at_start(given_up, NOW + 5, has_topics=False) == BrokerState(
        mode="active", reason=RECOVERED, time_ms=NOW + 5
    )


@pytest.mark.parametrize(
    ("later_ms", "reason"), [(TRUSTED_MS - 1, CANNOT_WRITE_AGAIN), (TRUSTED_MS, CANNOT_WRITE)]
)
def test_who_gives_up_again_soon_waits_for_an_operator(later_ms: int, reason: str) -> None:
    recovered = BrokerState(mode="active", reason=RECOVERED, time_ms=NOW)
    assert state_given_up(recovered, "ill", NOW + later_ms, PLACE).reason == reason


@pytest.mark.parametrize(("has_topics", "mode"), [(True, "draining"), (False, "drained")])
def test_who_waits_for_an_operator_gives_away_what_it_still_has(
    *, has_topics: bool, mode: str
) -> None:
    found = BrokerState(mode="drained", reason=CANNOT_WRITE_AGAIN, why="ill", place=PLACE)
    state = state_at_start(found, NOW, has_topics=has_topics)
    assert (state.mode, state.reason, state.why, state.place) == (
        mode,
        CANNOT_WRITE_AGAIN,
        "ill",
        None,
    )


@pytest.mark.parametrize("mode", ["draining", "drained"])
def test_an_operators_word_outlasts_a_failed_disk(mode: str) -> None:
    said = BrokerState(mode=mode, reason="unload")  # type: ignore[arg-type]
    given_up = state_given_up(said, "ill", NOW, PLACE)
    assert (given_up.mode, given_up.reason, given_up.why) == (mode, "unload", "ill")
    assert state_at_start(given_up, NOW, has_topics=False) == said
