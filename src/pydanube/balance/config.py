"""The `load_manager:` section of the broker's configuration."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from pydanube.balance.scoring import Strategy
from pydanube.balance.topic_patterns import check_topic_pattern

Level: TypeAlias = Literal["conservative", "balanced", "aggressive"]

Seconds = Annotated[int, Meta(ge=1)]


class RebalancingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When topics move from one broker to another."""

    enabled: Annotated[bool, Meta(description="Move topics between brokers by load.")] = False
    aggressiveness: Annotated[
        Level,
        Meta(
            description="Imbalance (coefficient of variation of the brokers' scores) that starts "
            "moves: 0.40, 0.30 or 0.20. They end at three quarters of it."
        ),
    ] = "balanced"
    check_interval_seconds: Annotated[Seconds, Meta(description="Time between two looks.")] = 300
    max_moves_per_hour: Annotated[
        int, Meta(ge=0, description="Bound on moves in any hour; 0 moves nothing.")
    ] = 10
    max_moves_per_cycle: Annotated[
        int, Meta(ge=1, description="Bound on moves after one look. PyDanube's own key.")
    ] = 1
    cooldown_seconds: Annotated[int, Meta(ge=0, description="Rest after a move.")] = 60
    min_brokers_for_rebalance: Annotated[
        int, Meta(ge=1, description="With fewer active brokers, nothing moves.")
    ] = 2
    min_topic_age_seconds: Annotated[
        int,
        Meta(ge=0, description="A topic stays this long where it came to, by creation or move."),
    ] = 300
    blacklist_topics: Annotated[
        tuple[str, ...],
        Meta(description="Topics never moved: names, in which `*` stands for any characters."),
    ] = ()

    def __post_init__(self) -> None:
        for pattern in self.blacklist_topics:
            check_topic_pattern(pattern, "load_manager.rebalancing.blacklist_topics")


class LoadManagerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which broker serves which topic. One broker alone has nothing to decide."""

    assignment_strategy: Annotated[
        Strategy, Meta(description="How brokers are scored, for new topics and for moves.")
    ] = "balanced"
    load_report_interval_seconds: Annotated[
        Seconds, Meta(description="Time between two load reports.")
    ] = 30
    rebalancing: RebalancingConfig = RebalancingConfig()
