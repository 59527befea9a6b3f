"""Whether a producer or consumer may enter a topic, given who is there."""

from pydanube.errors import InvalidRequest, Unavailable
from pydanube.model.policies import DispatchStrategy
from pydanube.subscriptions.consumer import Consumer
from pydanube.subscriptions.subscription import Subscription
from pydanube.topics.catalog import AccessMode
from pydanube.topics.errors import (
    DispatchMismatch,
    ProducerExcluded,
    SubscriptionLimit,
    TooManyConsumers,
)
from pydanube.topics.producer import Producer
from pydanube.topics.topic import Topic

FILTERS_MAX = 100
FILTER_CHARACTERS_MAX = 256


def check_strategy(topic: Topic, strategy: DispatchStrategy | None) -> None:
    """Refuse a producer that takes the topic for what it is not."""
    if strategy is not None and strategy != topic.record.strategy:
        raise DispatchMismatch(
            f"topic {topic.name} is {topic.record.strategy}; the producer asks for {strategy}"
        )


def check_served(topic: Topic, served: Topic | None) -> None:
    """Refuse whoever was recorded while the topic left: nobody would take leave of it."""
    if served is not topic:
        raise Unavailable(f"topic {topic.name} is no longer served here; look it up again")


def check_access(topic: Topic, access_mode: AccessMode, others: list[Producer]) -> None:
    """Refuse a producer that would be where another one is alone, or alone where others are."""
    holder = next((each for each in others if each.access_mode == "Exclusive"), None)
    if holder is not None:
        raise ProducerExcluded(
            f"producer {holder.name} has exclusive access to topic {topic.name}; close it first"
        )
    if access_mode == "Exclusive" and others:
        raise ProducerExcluded(
            f"topic {topic.name} has other producers ({others[0].name}); exclusive access "
            "must wait until they are gone"
        )


def check_room(
    topic: Topic,
    subscription: Subscription | None,
    subscription_name: str,
    known: Consumer | None,
) -> None:
    """Refuse a newcomer for whom the policies leave no room."""
    policies = topic.policies
    limit = policies.max_subscriptions_per_topic
    if subscription is None and limit is not None and len(topic.subscriptions) >= limit:
        raise SubscriptionLimit(
            f"topic {topic.name} has {len(topic.subscriptions)} subscriptions; "
            f"max_subscriptions_per_topic is {limit}"
        )
    if known is not None:
        return
    limit = policies.max_consumers_per_topic
    if limit is not None and topic.active_consumers >= limit:
        raise TooManyConsumers(
            f"topic {topic.name} has {topic.active_consumers} consumers; "
            f"max_consumers_per_topic is {limit}"
        )
    limit = policies.max_consumers_per_subscription
    if subscription and limit is not None and subscription.active_consumers >= limit:
        raise SubscriptionLimit(
            f"subscription {subscription_name} has {subscription.active_consumers} consumers; "
            f"max_consumers_per_subscription is {limit}"
        )


def check_filters(filters: tuple[str, ...]) -> None:
    """Refuse more or longer key filters than a consumer may have."""
    if len(filters) > FILTERS_MAX or any(len(each) > FILTER_CHARACTERS_MAX for each in filters):
        raise InvalidRequest(
            f"a consumer may have {FILTERS_MAX} key filters of {FILTER_CHARACTERS_MAX} characters"
        )
