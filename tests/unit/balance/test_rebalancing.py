"""What moves, and why nothing does."""

from pydanube.balance.history import History
from pydanube.balance.rebalancing import decide
from pydanube.balance.settings import RebalanceSettings
from tests.support.balance_builders import NOW_MS, counted


def test_an_overloaded_broker_gives_a_topic_to_the_least_loaded() -> None:
    settings = RebalanceSettings(enabled=True, strategy="fair")
    decision = decide(counted({1: 20, 2: 10, 3: 5}), settings, History(), NOW_MS)
    assert decision.outcome == "move"
    assert [(each.source, each.target) for each in decision.moves] == [(1, 3)]
