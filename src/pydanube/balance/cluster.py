"""The leader's view of the cluster's load, and what becomes of it when a topic moves."""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from pydanube.balance.reports import LoadReport, ResourceUsage, TopicLoad
from pydanube.model.ids import BrokerId

BrokerMode: TypeAlias = Literal["active", "draining", "drained"]


class Figures(Struct, frozen=True, kw_only=True):
    """What strategies weigh: of a broker, or what one topic adds to its broker's."""

    topics: float = 0.0
    megabytes: float = 0.0
    """Published per second."""
    clients: float = 0.0
    """Producers and consumers."""
    backlog: float = 0.0
    cpu: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    network: float = 0.0

    def plus(self, other: "Figures", sign: int = 1) -> "Figures":
        """Return the sum; with `sign=-1` the difference, nowhere below 0."""
        return Figures(
            topics=max(0.0, self.topics + sign * other.topics),
            megabytes=max(0.0, self.megabytes + sign * other.megabytes),
            clients=max(0.0, self.clients + sign * other.clients),
            backlog=max(0.0, self.backlog + sign * other.backlog),
            cpu=max(0.0, self.cpu + sign * other.cpu),
            memory=max(0.0, self.memory + sign * other.memory),
            disk=max(0.0, self.disk + sign * other.disk),
            network=max(0.0, self.network + sign * other.network),
        )

    def minus(self, other: "Figures") -> "Figures":
        """Return the difference, nowhere below 0."""
        return self.plus(other, sign=-1)

    def weighed(self, weights: "Figures") -> float:
        """Return the sum of all figures, each times its weight."""
        return (
            self.topics * weights.topics
            + self.megabytes * weights.megabytes
            + self.clients * weights.clients
            + self.backlog * weights.backlog
            + self.cpu * weights.cpu
            + self.memory * weights.memory
            + self.disk * weights.disk
            + self.network * weights.network
        )


class ServedTopic(Struct, frozen=True, kw_only=True):
    """A topic as the leader knows it."""

    figures: Figures
    served_since_ms: int | None = None
    reported: bool = True
    """False when no report has told of it yet, so that its load is unknown."""


NEW_TOPIC = ServedTopic(figures=Figures(topics=1.0), reported=False)


class BrokerLoad(Struct, frozen=True, kw_only=True):
    """One broker: its figures, and the topics it serves that may be spoken of by name."""

    broker: BrokerId
    mode: BrokerMode = "active"
    reported_ms: int | None = None
    """When its report was written; None before the first one."""
    figures: Figures = Figures()
    topics: Mapping[str, ServedTopic] = {}

    @property
    def accepts_topics(self) -> bool:
        """Whether topics may be given to it."""
        return self.mode == "active"

    def with_topic(self, name: str, topic: ServedTopic) -> "BrokerLoad":
        """Return the broker as it will be when it serves that topic, too."""
        return msgspec.structs.replace(
            self,
            figures=self.figures.plus(topic.figures),
            topics={**self.topics, name: topic},
        )

    def without_topic(self, name: str) -> "BrokerLoad":
        """Return the broker as it will be when the topic has left, with its share of the load."""
        topics = dict(self.topics)
        gone = topics.pop(name)
        return msgspec.structs.replace(
            self, figures=self.figures.minus(gone.figures), topics=topics
        )


class ClusterLoad(Struct, frozen=True, kw_only=True):
    """All registered brokers, by their ids in ascending order."""

    brokers: Mapping[BrokerId, BrokerLoad]

    @property
    def active(self) -> list[BrokerLoad]:
        """The brokers that topics may be given to."""
        return [each for each in self.brokers.values() if each.accepts_topics]

    def owner_of(self, topic: str) -> BrokerId | None:
        """Return which broker serves a topic, as far as it is known by name."""
        for broker, load in self.brokers.items():
            if topic in load.topics:
                return broker
        return None

    def with_assignment(self, topic: str, target: BrokerId) -> "ClusterLoad":
        """Return the view after a topic was given to `target`, from whatever broker had it.

        The load a topic is known to have moves with it; a new topic has none.
        """
        served = NEW_TOPIC
        brokers = dict(self.brokers)
        source = self.owner_of(topic)
        if source is not None:
            served = brokers[source].topics[topic]
            brokers[source] = brokers[source].without_topic(topic)
        brokers[target] = brokers[target].with_topic(topic, served)
        return ClusterLoad(brokers=brokers)


def cluster_load(
    reports: Iterable[LoadReport],
    modes: Mapping[BrokerId, BrokerMode],
    owners: Mapping[str, BrokerId] | None = None,
    received_ms: Mapping[BrokerId, int] | None = None,
) -> ClusterLoad:
    """Put the reports of all registered brokers together.

    `modes` names the registered brokers; reports of others are left out, and a broker that has
    not reported yet counts as empty. `owners`, the assignments, are the truth about who serves
    what: a topic that a report places elsewhere is counted at its owner, with the load that is
    known of it, and one that no report lists as a topic without load. Without `owners`, the
    newest report that lists a topic has it. `received_ms` tells when the leader got each report,
    by its own clock; without it, the brokers' clocks are trusted to agree with the leader's.
    """
    brokers = {broker: _Gathered(broker, modes[broker]) for broker in sorted(modes)}
    # The newest last, so that it is believed; ties break on the id.
    in_order = sorted(reports, key=lambda each: (each.timestamp_ms, each.broker_id))
    newest = {each.broker_id: each for each in in_order if each.broker_id in brokers}
    known: dict[str, tuple[ServedTopic, BrokerId]] = {}
    for report in sorted(newest.values(), key=lambda each: (each.timestamp_ms, each.broker_id)):
        here = report.broker_id
        for name, topic in brokers[here].take(report, exact=owners is not None):
            if name in known:
                there = known[name][1]
                if owners is not None and owners.get(name) == there:
                    brokers[here].drop(name)
                    continue
                brokers[there].drop(name)
            known[name] = (topic, here)
    if owners is not None:
        _place(brokers, known, owners)
    for broker, at_ms in (received_ms or {}).items():
        if broker in newest:
            brokers[broker].received(at_ms)
    return ClusterLoad(brokers={broker: each.load() for broker, each in brokers.items()})


def _place(
    brokers: "Mapping[BrokerId, _Gathered]",
    known: Mapping[str, tuple[ServedTopic, BrokerId]],
    owners: Mapping[str, BrokerId],
) -> None:
    for name, (topic, reporter) in known.items():
        if owners.get(name) != reporter:
            brokers[reporter].drop(name)
            if owners.get(name) in brokers:
                brokers[owners[name]].add(name, topic)
    for name, owner in owners.items():
        if name not in known and owner in brokers:
            brokers[owner].add(name, NEW_TOPIC)


class _Gathered:
    """One broker while reports are put together."""

    def __init__(self, broker: BrokerId, mode: BrokerMode) -> None:
        self._broker = broker
        self._mode = mode
        self._reported_ms: int | None = None
        self._figures = Figures()
        self._topics: dict[str, ServedTopic] = {}

    def take(self, report: LoadReport, *, exact: bool) -> list[tuple[str, ServedTopic]]:
        """Take the broker's report over; with `exact`, topics are counted by name alone."""
        usage = report.resources_usage or ResourceUsage()
        listed = [(each.topic_name, _served(each, report, usage)) for each in report.topics]
        self._reported_ms = report.timestamp_ms
        self._topics = dict(listed)
        self._figures = Figures(
            topics=float(len(listed) if exact else report.topic_count),
            megabytes=report.total_throughput_mbps,
            clients=float(report.total_clients),
            backlog=float(report.total_lag_messages),
            cpu=usage.cpu_percent,
            memory=usage.memory_percent,
            disk=usage.disk_bytes_per_second,
            network=usage.network_bytes_per_second,
        )
        return listed

    def received(self, at_ms: int) -> None:
        """Date the report by another clock."""
        self._reported_ms = at_ms

    def add(self, name: str, topic: ServedTopic) -> None:
        self._topics[name] = topic
        self._figures = self._figures.plus(topic.figures)

    def drop(self, name: str) -> None:
        self._figures = self._figures.minus(self._topics.pop(name).figures)

    def load(self) -> BrokerLoad:
        return BrokerLoad(
            broker=self._broker,
            mode=self._mode,
            reported_ms=self._reported_ms,
            figures=self._figures,
            topics=self._topics,
        )


def _served(load: TopicLoad, report: LoadReport, usage: ResourceUsage) -> ServedTopic:
    share = _share(load, report)
    return ServedTopic(
        figures=Figures(
            topics=1.0,
            megabytes=load.byte_rate_mbps,
            clients=float(load.client_count),
            backlog=float(load.backlog_messages),
            cpu=usage.cpu_percent * share,
            # Memory stays: nothing says how much of it a broker gives back.
            disk=usage.disk_bytes_per_second * share,
            network=usage.network_bytes_per_second * share,
        ),
        served_since_ms=load.served_since_ms,
    )


def _share(load: TopicLoad, report: LoadReport) -> float:
    """Estimate which part of the broker's work is a topic's: by messages and by bytes, halves."""
    messages = report.total_message_rate + report.total_message_rate_out
    megabytes = report.total_throughput_mbps + report.total_throughput_out_mbps
    own_messages = load.message_rate + load.message_rate_out
    own_megabytes = load.byte_rate_mbps + load.byte_rate_out / 1_000_000
    by_messages = own_messages / messages if messages > 0 else 0.0
    by_bytes = own_megabytes / megabytes if megabytes > 0 else 0.0
    return min(1.0, (by_messages + by_bytes) / 2)
