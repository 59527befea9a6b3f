"""What is true of the topics at this moment, for whoever collects metrics."""

from collections.abc import Iterator

from pydanube.observability.counts import SubscriptionReading, TopicReading
from pydanube.subscriptions.subscription import Subscription
from pydanube.topics.manager import TopicManager


def topic_readings(topics: TopicManager, now_ms: int) -> Iterator[TopicReading]:
    """Read every topic and its subscriptions."""
    for topic in topics:
        yield TopicReading(
            name=topic.name,
            reliable=topic.is_reliable,
            active_producers=len(topic.live_producers(now_ms)),
            active_consumers=topic.active_consumers,
            subscriptions=[
                _reading(each, hold_lapsed=topic.leases.has_lapsed(each.name))
                for each in topic.subscriptions.values()
            ],
        )


def _reading(subscription: Subscription, *, hold_lapsed: bool) -> SubscriptionReading:
    return SubscriptionReading(
        name=subscription.name,
        active_consumers=subscription.active_consumers,
        lag=subscription.lag,
        pending_redelivery=subscription.waiting_count,
        blocked=subscription.blocked_count,
        delayed=subscription.delayed_count,
        hold_lapsed=hold_lapsed,
    )
