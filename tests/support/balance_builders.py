"""Clusters for tests of placement and rebalancing, in few words."""

from collections.abc import Mapping

from pydanube.balance.cluster import BrokerLoad, BrokerMode, ClusterLoad, Figures, ServedTopic
from pydanube.balance.config import Level
from pydanube.balance.reports import LoadReport, ResourceUsage, TopicLoad
from pydanube.model.ids import BrokerId

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
NOW_MS = 1_000 * HOUR_MS

LEVELS: tuple[Level, ...] = ("conservative", "balanced", "aggressive")


def topic_name(broker: int, index: int) -> str:
    return f"/default/b{broker}-{index}"


def counted(
    counts: Mapping[int, int], modes: Mapping[int, BrokerMode] | None = None
) -> ClusterLoad:
    """Brokers with so many topics without any load."""
    return loaded({broker: [0.0] * count for broker, count in counts.items()}, modes)


def loaded(
    megabytes: Mapping[int, list[float]],
    modes: Mapping[int, BrokerMode] | None = None,
    *,
    served_since_ms: int | None = 0,
    reported_ms: int | None = NOW_MS,
) -> ClusterLoad:
    """Brokers with topics of so many MB/s each, and nothing else."""
    brokers = {}
    for broker, rates in sorted(megabytes.items()):
        topics = {
            topic_name(broker, index): ServedTopic(
                figures=Figures(topics=1.0, megabytes=rate), served_since_ms=served_since_ms
            )
            for index, rate in enumerate(rates)
        }
        brokers[BrokerId(broker)] = BrokerLoad(
            broker=BrokerId(broker),
            mode=(modes or {}).get(broker, "active"),
            reported_ms=reported_ms,
            figures=Figures(topics=float(len(rates)), megabytes=sum(rates)),
            topics=topics,
        )
    return ClusterLoad(brokers=brokers)


def report(
    broker: int,
    topics: Mapping[str, float],
    *,
    at_ms: int = NOW_MS,
    usage: ResourceUsage | None = None,
) -> LoadReport:
    """A report of topics with so many MB/s each, in messages of 1 kB."""
    loads = tuple(
        TopicLoad(
            topic_name=name, message_rate=rate * 1000, byte_rate=rate * 1e6, byte_rate_mbps=rate
        )
        for name, rate in topics.items()
    )
    return LoadReport(
        broker_id=BrokerId(broker),
        timestamp_ms=at_ms,
        resources_usage=usage,
        topics=loads,
        topic_count=len(loads),
        total_throughput_mbps=sum(topics.values()),
        total_message_rate=sum(topics.values()) * 1000,
    )
