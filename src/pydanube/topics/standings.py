"""How the subscriptions of a topic get on, for listings, health and events."""

from collections.abc import Iterable, Iterator

from pydanube.model.standing import SubscriptionStanding, SubscriptionState
from pydanube.subscriptions.subscription import Subscription
from pydanube.topics.topic import Topic


def standings(topic: Topic, only: str | None = None) -> list[SubscriptionStanding]:
    """Return how a topic's subscriptions get on, by name; or that of one of them."""
    return [
        _standing(topic, topic.subscriptions[name])
        for name in sorted(topic.subscriptions)
        if only is None or name == only
    ]


def stopped(topics: Iterable[Topic]) -> Iterator[SubscriptionStanding]:
    """Return the subscriptions that do not go on by themselves."""
    for topic in topics:
        for subscription in topic.subscriptions.values():
            if subscription.trouble is not None:
                yield _standing(topic, subscription)


def _standing(topic: Topic, subscription: Subscription) -> SubscriptionStanding:
    trouble = subscription.trouble
    state: SubscriptionState = "active" if subscription.active_consumers else "idle"
    return SubscriptionStanding(
        topic=topic.name,
        subscription=subscription.name,
        type=subscription.kind,
        state=trouble.state if trouble is not None else state,
        active_consumers=subscription.active_consumers,
        lag=subscription.lag,
        waiting_retry=subscription.waiting_count,
        blocked=subscription.blocked_count,
        delayed=subscription.delayed_count,
        offset=trouble.offset if trouble is not None else None,
        attempts=trouble.attempts if trouble is not None else None,
        reason=trouble.reason if trouble is not None else None,
        next_step=trouble.next_step if trouble is not None else None,
        failure_policy=topic.policy_of(subscription.name),
    )
