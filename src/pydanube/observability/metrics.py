"""All that the broker counts, and its text for Prometheus.

Topics and subscriptions get series of their own up to a cap; those beyond it are added up under
the name `_other`, so that a broker with many topics does not overwhelm whoever collects.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping

from msgspec import Struct

from pydanube.observability.counts import (
    JournalMetrics,
    MirrorMetrics,
    MirrorReading,
    RpcMetrics,
    SegmentMetrics,
    SubscriptionMetrics,
    TopicMetrics,
    TopicReading,
    WakeUps,
    add_up,
    count_up,
)
from pydanube.observability.distribution import HALF_WINDOW_MS, Distribution
from pydanube.observability.exposition import Exposition, Labels, Value
from pydanube.observability.metric_table import (
    BROKER_METRICS,
    JOURNAL,
    JOURNAL_METRICS,
    MIRROR_METRICS,
    OTHER,
    PROCESS_METRICS,
    SEGMENT_METRICS,
    SUBSCRIPTION_METRICS,
    TOPIC_METRICS,
    Metric,
)
from pydanube.observability.process import ProcessReading

TOPIC_SERIES_MAX = 1_000
SUBSCRIPTION_SERIES_MAX = 2_000

# A broker nobody collects from forgets what is gone after so many newcomers.
_NEWCOMERS_MAX = 4_096
_NAMESPACES_MAX = 1_000
_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")

Hop = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Runs a function in another thread and gives its result."""


class ClusterReading(Struct, frozen=True, kw_only=True):
    """What is true of a broker's part in its cluster now."""

    leads: bool
    imbalance: float
    moves: int
    failed_moves: int
    cycle_seconds: Distribution | None = None


class Sources(Struct, frozen=True, kw_only=True):
    """Where to look when metrics are asked for. All run on the event loop, but for `process`."""

    topics: Callable[[], Iterable[TopicReading]]
    unsynced_bytes: Callable[[], int]
    journal_failed: Callable[[], bool]
    journal_waiting: Callable[[], bool] = bool
    unexported_bytes: Callable[[], int] = int
    topics_failing: Callable[[], int] = int
    process: Callable[[], ProcessReading] | None = None
    cluster: Callable[[], ClusterReading] | None = None
    """None for a broker that stands alone."""
    mirrors: Callable[[], MirrorReading] | None = None
    """Likewise."""


class BrokerMetrics:
    """The numbers of one broker; several brokers in a process each have their own.

    Everything but the making of the text happens on the event loop. Series of topics and
    subscriptions that are gone disappear by themselves; what they counted under `_other` stays.
    """

    def __init__(self, broker: str, monotonic_ms: Callable[[], int] = int) -> None:
        """Without a clock, which tells when to forget, quantiles are those of all there was."""
        self.broker = broker
        self._monotonic_ms = monotonic_ms
        self._turned_ms = monotonic_ms()
        self.leader = 1
        self.topics_owned = 0
        self.journal = JournalMetrics()
        self.segments = SegmentMetrics()
        self.mirrors = MirrorMetrics()
        self.assignments: dict[Labels, int] = {}
        self.redirects: dict[Labels, int] = {}
        self.imbalance = 0.0
        self.moves: dict[Labels, int] = {}
        self.failed_moves = 0
        self.cycle_seconds = Distribution()
        self._rpc: dict[tuple[str, str], RpcMetrics] = {}
        self._wake_ups = WakeUps()
        self._topics: dict[str, TopicMetrics] = {}
        self._topic_series = 0
        self._subscription_series = 0
        self._newcomers = 0
        self._gone = self._new_topic(own_series=False)
        self._gone_subscriptions = SubscriptionMetrics(self._wake_ups, own_series=False)
        self._sources: Sources | None = None

    def read_from(self, sources: Sources) -> None:
        """Say where to look for what is true at the moment; once the broker is wired."""
        self._sources = sources

    def topic(self, name: str) -> TopicMetrics:
        """Return the numbers of one topic, the same as long as it exists."""
        metrics = self._topics.get(name)
        if metrics is None:
            self._welcome()
            own = self._topic_series < TOPIC_SERIES_MAX
            self._topic_series += own
            metrics = self._topics[name] = self._new_topic(own_series=own)
        return metrics

    def rpc(self, path: str) -> RpcMetrics:
        """Return the numbers of one method, named by its path: /danube.ProducerService/Ack."""
        service, _, method = path.rpartition("/")
        service = service.rpartition(".")[2].removesuffix("Service")
        return self._rpc.setdefault((_snake(service), _snake(method)), RpcMetrics())

    def assigned(self, broker_id: str, action: str) -> None:
        """Count a topic that came to a broker (assign) or left it (unassign)."""
        count_up(self.assignments, (broker_id, action), 1)

    def redirected(self, reason: str, namespace: str) -> None:
        """Count a lookup that was sent elsewhere."""
        if (reason, namespace) not in self.redirects and len(self.redirects) >= _NAMESPACES_MAX:
            namespace = OTHER
        count_up(self.redirects, (reason, namespace), 1)

    async def render(self, hop: Hop) -> bytes:
        """Return the text of all metrics, made in another thread."""
        self._refresh()
        topics = list(self._topics.items())
        subscriptions = [
            (topic, name, metrics)
            for topic, owner in topics
            for name, metrics in owner.subscriptions.items()
        ]
        return await hop(lambda: self._text(topics, subscriptions))

    # What the tables of metrics name.

    @property
    def rpc_calls(self) -> dict[Labels, int]:
        """Calls by service, method and result."""
        calls: dict[Labels, int] = {}
        for (service, method), metrics in dict(self._rpc).items():
            if metrics.ok or metrics.errors:
                calls[service, method, "ok"] = metrics.ok
                calls[service, method, "error"] = metrics.errors
        return calls

    @property
    def timer_wake_ups(self) -> int:
        """How often a timeout or retry was due."""
        return self._wake_ups.by_timer

    @property
    def message_wake_ups(self) -> int:
        """How often messages came in."""
        return self._wake_ups.by_messages

    # Coming and going.

    def _new_topic(self, *, own_series: bool) -> TopicMetrics:
        return TopicMetrics(
            self._wake_ups, own_series=own_series, admit_subscription=self._admit_subscription
        )

    def _admit_subscription(self, topic_has_series: bool) -> bool:
        self._welcome()
        own = topic_has_series and self._subscription_series < SUBSCRIPTION_SERIES_MAX
        self._subscription_series += own
        return own

    def _welcome(self) -> None:
        self._newcomers += 1
        if self._newcomers >= _NEWCOMERS_MAX:
            self._refresh()

    def _refresh(self) -> None:
        """Read what is true now, and forget what is gone."""
        self._newcomers = 0
        self._turn()
        sources = self._sources
        if sources is None:
            return
        readings = {reading.name: reading for reading in sources.topics()}
        self.topics_owned = len(readings)
        self.journal.unsynced_bytes = sources.unsynced_bytes()
        self.journal.failed = int(sources.journal_failed())
        self.journal.waiting = int(sources.journal_waiting())
        self.segments.unexported_bytes = sources.unexported_bytes()
        self.segments.topics_failing = sources.topics_failing()
        if sources.cluster is not None:
            self._read_cluster(sources.cluster())
        if sources.mirrors is not None:
            self.mirrors.read(sources.mirrors())
        for name, metrics in list(self._topics.items()):
            reading = readings.get(name)
            if reading is None:
                self._forget_topic(name, metrics)
            else:
                metrics.read(reading)
                self._refresh_subscriptions(metrics, reading)

    def _turn(self) -> None:
        """Let quantiles tell of lately: since the last look, or of the last minute."""
        now_ms = self._monotonic_ms()
        if now_ms - self._turned_ms >= HALF_WINDOW_MS:
            self._turned_ms = now_ms
            for topic in (*self._topics.values(), self._gone):
                topic.turn()
            self.segments.turn()
            self.cycle_seconds.turn()

    def _read_cluster(self, reading: ClusterReading) -> None:
        self.leader = int(reading.leads)
        self.imbalance = reading.imbalance
        self.moves = {("LoadImbalance",): reading.moves} if reading.moves else {}
        self.failed_moves = reading.failed_moves
        self.cycle_seconds = reading.cycle_seconds or self.cycle_seconds

    def _refresh_subscriptions(self, topic: TopicMetrics, reading: TopicReading) -> None:
        readings = {each.name: each for each in reading.subscriptions}
        for name, metrics in list(topic.subscriptions.items()):
            if name in readings:
                metrics.read(readings[name])
            else:
                self._forget_subscription(topic, name)

    def _forget_topic(self, name: str, metrics: TopicMetrics) -> None:
        for subscription in list(metrics.subscriptions):
            self._forget_subscription(metrics, subscription)
        del self._topics[name]
        self._topic_series -= metrics.own_series
        if not metrics.own_series:
            add_up(self._gone, metrics, TopicMetrics.COUNTS)

    def _forget_subscription(self, topic: TopicMetrics, name: str) -> None:
        metrics = topic.subscriptions.pop(name)
        self._subscription_series -= metrics.own_series
        if not metrics.own_series:
            add_up(self._gone_subscriptions, metrics, SubscriptionMetrics.COUNTS)

    # The text, made in another thread.

    def _text(
        self,
        topics: list[tuple[str, TopicMetrics]],
        subscriptions: list[tuple[str, str, SubscriptionMetrics]],
    ) -> bytes:
        out = Exposition(self.broker)
        _add_all(out, BROKER_METRICS, [(out.broker, self)])
        _add_all(out, TOPIC_METRICS, self._topic_rows(out, topics))
        _add_all(out, SUBSCRIPTION_METRICS, self._subscription_rows(out, subscriptions))
        journal = out.labels(("topic",), (JOURNAL,))
        for attribute, metric in JOURNAL_METRICS.items():
            labels = journal if metric.labels else out.broker
            out.add(metric, [(labels, getattr(self.journal, attribute))])
        _add_all(out, SEGMENT_METRICS, [(out.broker, self.segments)])
        _add_all(out, MIRROR_METRICS, [(out.broker, self.mirrors)])
        if self._sources is not None and self._sources.process is not None:
            _add_all(out, PROCESS_METRICS, [(out.broker, self._sources.process())])
        return out.text()

    def _topic_rows(
        self, out: Exposition, topics: list[tuple[str, TopicMetrics]]
    ) -> list[tuple[str, object]]:
        rows: list[tuple[str, object]] = []
        other = self._new_topic(own_series=False)
        add_up(other, self._gone, TopicMetrics.COUNTS)
        for name, metrics in topics:
            if metrics.own_series:
                rows.append((out.labels(("topic",), (name,)), metrics))
            else:
                add_up(other, metrics, (*TopicMetrics.COUNTS, *TopicMetrics.GAUGES))
        if len(rows) < len(topics) or self._gone.messages_in:
            rows.append((out.labels(("topic",), (OTHER,)), other))
        return rows

    def _subscription_rows(
        self, out: Exposition, subscriptions: list[tuple[str, str, SubscriptionMetrics]]
    ) -> list[tuple[str, object]]:
        names = ("topic", "subscription")
        rows: list[tuple[str, object]] = []
        other = SubscriptionMetrics(self._wake_ups, own_series=False)
        add_up(other, self._gone_subscriptions, SubscriptionMetrics.COUNTS)
        for topic, name, metrics in subscriptions:
            if metrics.own_series:
                rows.append((out.labels(names, (topic, name)), metrics))
            else:
                add_up(other, metrics, (*SubscriptionMetrics.COUNTS, *SubscriptionMetrics.GAUGES))
        if len(rows) < len(subscriptions) or self._gone_subscriptions.messages_out:
            rows.append((out.labels(names, (OTHER, OTHER)), other))
        return rows


def _add_all(
    out: Exposition, metrics: Mapping[str, Metric], rows: list[tuple[str, object]]
) -> None:
    for attribute, metric in metrics.items():
        values: list[tuple[str, Value]] = [
            (labels, getattr(numbers, attribute)) for labels, numbers in rows
        ]
        out.add(metric, values)


def _snake(name: str) -> str:
    return _WORD_START.sub("_", name).lower()
