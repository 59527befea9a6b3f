"""One look at how busy a broker is, for its load reports."""

from pydanube.balance.measuring import BrokerCounters, TopicCounters
from pydanube.observability.metrics import BrokerMetrics
from pydanube.runtime.clock import Clock
from pydanube.runtime.usage import UsageSampler
from pydanube.topics.manager import TopicManager
from pydanube.topics.topic import Topic


class LoadCounter:
    """Reads what the broker has counted anyway."""

    def __init__(
        self, topics: TopicManager, metrics: BrokerMetrics, clock: Clock, usage: UsageSampler | None
    ) -> None:
        self._topics = topics
        self._metrics = metrics
        self._clock = clock
        self._usage = usage

    def __call__(self) -> BrokerCounters:
        """Look once."""
        now_ms = self._clock.monotonic_ms()
        return BrokerCounters(
            at_ms=self._clock.now_ms(),
            machine=self._usage.sample() if self._usage is not None else None,
            topics={topic.name: self._topic(topic, now_ms) for topic in self._topics},
        )

    def _topic(self, topic: Topic, now_ms: int) -> TopicCounters:
        counted = self._metrics.topic(topic.name)
        out = counted.subscriptions.values()
        return TopicCounters(
            topic_name=topic.name,
            served_since_ms=topic.served_since_ms,
            messages_in=counted.messages_in,
            bytes_in=counted.bytes_in,
            messages_out=sum(each.messages_out for each in out),
            bytes_out=sum(each.bytes_out for each in out),
            producer_count=len(topic.live_producers(now_ms)),
            consumer_count=topic.active_consumers,
            subscription_count=len(topic.subscriptions),
            backlog_messages=sum(each.lag for each in topic.subscriptions.values()),
        )
