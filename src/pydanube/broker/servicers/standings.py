"""Subscriptions and their failure policies as messages of the admin API, and back."""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import structs

from pydanube.errors import InvalidRequest
from pydanube.model.names import check_topic_name
from pydanube.model.policies import BackoffStrategy, FailurePolicy, PoisonPolicy
from pydanube.topics.standings import standings
from pydanube.topics.topic import Topic
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin

_BACKOFFS: Mapping[admin.SubscriptionBackoffStrategy.ValueType, BackoffStrategy] = {
    admin.SubscriptionBackoffStrategy.Fixed: "Fixed",
    admin.SubscriptionBackoffStrategy.Exponential: "Exponential",
}
_POISON_POLICIES: Mapping[admin.SubscriptionPoisonPolicy.ValueType, PoisonPolicy] = {
    admin.SubscriptionPoisonPolicy.DeadLetter: "DeadLetter",
    admin.SubscriptionPoisonPolicy.Block: "Block",
    admin.SubscriptionPoisonPolicy.Drop: "Drop",
}


def standing_messages(topics: Iterable[Topic]) -> list[admin.SubscriptionStanding]:
    """Return how all subscriptions of topics get on."""
    return [
        admin.SubscriptionStanding(
            **{
                **structs.asdict(each),
                "failure_policy": failure_policy_message(each.failure_policy),
            }
        )
        for topic in topics
        for each in standings(topic)
    ]


def failure_policy_of(message: admin.SubscriptionFailurePolicy) -> FailurePolicy:
    """Return the policy of a message; InvalidRequest if it is none."""
    if message.backoff_strategy not in _BACKOFFS:
        raise InvalidRequest(f"backoff_strategy {message.backoff_strategy} is unknown")
    if message.poison_policy not in _POISON_POLICIES:
        raise InvalidRequest(f"poison_policy {message.poison_policy} is unknown")
    fields = {
        "max_redelivery_count": message.max_redelivery_count,
        "ack_timeout_ms": message.ack_timeout_ms,
        "base_redelivery_delay_ms": message.base_redelivery_delay_ms,
        "max_redelivery_delay_ms": message.max_redelivery_delay_ms,
        "backoff_strategy": _BACKOFFS[message.backoff_strategy],
        "dead_letter_topic": message.dead_letter_topic or None,
        "poison_policy": _POISON_POLICIES[message.poison_policy],
    }
    try:
        policy = msgspec.convert(fields, FailurePolicy)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
    if policy.dead_letter_topic is not None:
        check_topic_name(policy.dead_letter_topic)
    return policy


def failure_policy_message(policy: FailurePolicy) -> admin.SubscriptionFailurePolicy:
    """Return a policy as a message."""
    return admin.SubscriptionFailurePolicy(
        max_redelivery_count=policy.max_redelivery_count,
        ack_timeout_ms=policy.ack_timeout_ms,
        base_redelivery_delay_ms=policy.base_redelivery_delay_ms,
        max_redelivery_delay_ms=policy.max_redelivery_delay_ms,
        backoff_strategy=next(n for n, b in _BACKOFFS.items() if b == policy.backoff_strategy),
        dead_letter_topic=policy.dead_letter_topic,
        poison_policy=next(n for n, p in _POISON_POLICIES.items() if p == policy.poison_policy),
    )
