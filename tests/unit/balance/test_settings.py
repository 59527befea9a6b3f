"""Every limit of the configuration reaches what decides."""

import pytest

from pydanube.balance.config import LoadManagerConfig, RebalancingConfig
from pydanube.balance.settings import RebalanceSettings, rebalance_settings


def test_the_defaults_are_the_documented_ones() -> None:
    settings = rebalance_settings(LoadManagerConfig())
    plain = RebalanceSettings()
    for name in RebalanceSettings.__struct_fields__:
        if name != "blacklist":
            assert getattr(settings, name) == getattr(plain, name), name
    assert not settings.enabled
    assert settings.strategy == "balanced"
    assert settings.threshold == 0.30
    assert settings.check_interval_ms == 300_000
    assert settings.moves_per_hour_max == 10
    assert settings.moves_per_cycle_max == 1
    assert settings.cooldown_ms == 60_000
    assert settings.brokers_min == 2
    assert settings.topic_age_min_ms == 300_000
    assert settings.report_age_max_ms == 90_000


def test_every_setting_has_its_effect() -> None:
    rebalancing = RebalancingConfig(
        enabled=True,
        aggressiveness="aggressive",
        check_interval_seconds=1,
        max_moves_per_hour=2,
        max_moves_per_cycle=3,
        cooldown_seconds=4,
        min_brokers_for_rebalance=5,
        min_topic_age_seconds=6,
        blacklist_topics=("/system/*",),
    )
    settings = rebalance_settings(
        LoadManagerConfig(
            assignment_strategy="fair", load_report_interval_seconds=7, rebalancing=rebalancing
        )
    )
    assert settings.enabled
    assert (settings.strategy, settings.level) == ("fair", "aggressive")
    assert settings.check_interval_ms == 1_000
    assert settings.moves_per_hour_max == 2
    assert settings.moves_per_cycle_max == 3
    assert settings.cooldown_ms == 4_000
    assert settings.brokers_min == 5
    assert settings.topic_age_min_ms == 6_000
    assert settings.report_age_max_ms == 21_000
    assert settings.blacklist.match("/system/events")


@pytest.mark.parametrize(
    ("level", "threshold", "release"),
    [("conservative", 0.40, 0.30), ("balanced", 0.30, 0.225), ("aggressive", 0.20, 0.15)],
)
def test_a_level_says_where_moves_begin_and_end(
    level: str, threshold: float, release: float
) -> None:
    settings = RebalanceSettings(level=level)  # type: ignore[arg-type]
    assert settings.threshold == pytest.approx(threshold)
    assert settings.release == pytest.approx(release)
