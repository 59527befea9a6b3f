"""What rebalancing may do: the configured limits, ready to decide by."""

from msgspec import Struct

from pydanube.balance.config import Level, LoadManagerConfig
from pydanube.balance.scoring import Strategy
from pydanube.balance.topic_patterns import TopicPatterns

THRESHOLDS: dict[Level, float] = {"conservative": 0.40, "balanced": 0.30, "aggressive": 0.20}
"""The coefficient of variation at which topics begin to move."""
RELEASE_PART = 0.75
"""Moves go on until this part of the threshold, lest noise starts them again right away."""
REPORTS_MISSED_MAX = 3
"""A broker that has missed more reports is left out of what is compared."""
HOUR_MS = 3_600_000


class RebalanceSettings(Struct, frozen=True, kw_only=True):
    """The limits, in the units `decide` reckons in."""

    enabled: bool = False
    strategy: Strategy = "balanced"
    level: Level = "balanced"
    check_interval_ms: int = 300_000
    moves_per_hour_max: int = 10
    moves_per_cycle_max: int = 1
    cooldown_ms: int = 60_000
    brokers_min: int = 2
    topic_age_min_ms: int = 300_000
    report_age_max_ms: int = 90_000
    blacklist: TopicPatterns = TopicPatterns(())

    @property
    def threshold(self) -> float:
        """The imbalance that starts moves."""
        return THRESHOLDS[self.level]

    @property
    def release(self) -> float:
        """The imbalance that ends them."""
        return THRESHOLDS[self.level] * RELEASE_PART


def rebalance_settings(config: LoadManagerConfig) -> RebalanceSettings:
    """Return the limits that a configuration sets."""
    rebalancing = config.rebalancing
    return RebalanceSettings(
        enabled=rebalancing.enabled,
        strategy=config.assignment_strategy,
        level=rebalancing.aggressiveness,
        check_interval_ms=rebalancing.check_interval_seconds * 1000,
        moves_per_hour_max=rebalancing.max_moves_per_hour,
        moves_per_cycle_max=rebalancing.max_moves_per_cycle,
        cooldown_ms=rebalancing.cooldown_seconds * 1000,
        brokers_min=rebalancing.min_brokers_for_rebalance,
        topic_age_min_ms=rebalancing.min_topic_age_seconds * 1000,
        report_age_max_ms=REPORTS_MISSED_MAX * config.load_report_interval_seconds * 1000,
        blacklist=TopicPatterns(rebalancing.blacklist_topics),
    )
