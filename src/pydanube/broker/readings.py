"""What is true of the topics at this moment, for whoever collects metrics."""

from collections.abc import Iterator

from pydanube.observability.counts import SubscriptionReading, TopicReading
from pydanube.subscriptions.subscription import Subscription
from pydanube.topics.manager import TopicManager
from pydanube.topics.standings import stopped

STOPPED_NAMED_MAX = 10


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


def stopped_notes(topics: TopicManager) -> list[str]:
    """Say which subscriptions do not go on by themselves, the first of them by name."""
    found = list(stopped(topics))
    notes = [
        f"subscription {each.subscription} of {each.topic} is {each.state}"
        + (f" at offset {each.offset}" if each.offset is not None else "")
        + f": {each.reason or 'no reason was given'}; next: {each.next_step}"
        for each in found[:STOPPED_NAMED_MAX]
    ]
    if len(found) > STOPPED_NAMED_MAX:
        notes.append(f"{len(found) - STOPPED_NAMED_MAX} more subscriptions are blocked or stalled")
    return notes


def _reading(subscription: Subscription, *, hold_lapsed: bool) -> SubscriptionReading:
    trouble = subscription.trouble
    return SubscriptionReading(
        name=subscription.name,
        active_consumers=subscription.active_consumers,
        lag=subscription.lag,
        pending_redelivery=subscription.waiting_count,
        blocked=subscription.blocked_count,
        stalled=trouble is not None and trouble.state == "stalled",
        delayed=subscription.delayed_count,
        hold_lapsed=hold_lapsed,
    )
