"""Subscriptions and their failure policies as people read them; programs get the JSON."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from pydanube.model.standing import SubscriptionStanding

if TYPE_CHECKING:
    from pydanube.admin.operations.subscriptions import SubscriptionFailurePolicy
    from pydanube.client.admin_answers import TopicDescription
    from pydanube.model.policies import FailurePolicy


class _Row(Struct, frozen=True, kw_only=True):
    subscription: str
    topic: str
    type: str
    state: str
    consumers: int
    lag: int
    retry: int
    blocked: int
    delayed: int
    failures: str


class _Setting(Struct, frozen=True, kw_only=True):
    topic: str
    subscription: str
    subscription_type: str
    max_redelivery_count: int
    ack_timeout_ms: int
    base_redelivery_delay_ms: int
    max_redelivery_delay_ms: int
    backoff_strategy: str
    dead_letter_topic: str
    poison_policy: str
    set: str


def subscriptions_as_text(found: Sequence[SubscriptionStanding | str]) -> Sequence[object]:
    """Return a table of subscriptions, and what to do about those that are stopped."""
    standings = [each for each in found if isinstance(each, SubscriptionStanding)]
    if len(standings) < len(found) or not found:
        return [list(found)]
    return [[_row(each) for each in standings], *stopped_as_text(standings)]


def topic_as_text(topic: "TopicDescription") -> Sequence[object]:
    """Return what is known about a topic, with its subscriptions in a table of their own."""
    shown = structs.replace(topic, standings=[])
    fields = {name: getattr(shown, name) for name in shown.__struct_fields__}
    if not topic.standings:
        return [_without(fields, "standings")]
    rows = subscriptions_as_text(topic.standings)
    return [_without(fields, "standings", "subscriptions"), "\nsubscriptions:", *rows]


def stopped_as_text(standings: Sequence[SubscriptionStanding]) -> Iterator[str]:
    """Say of each subscription that is stopped where, why, and what to type."""
    for each in standings:
        if each.is_stopped:
            where = f" at offset {each.offset}" if each.offset is not None else ""
            often = (
                f" after {attempts_in_words(each.attempts)}" if each.attempts is not None else ""
            )
            yield (
                f"\n{each.subscription} of {each.topic} is {each.state}{where}{often}: "
                f"{each.reason or 'no reason was given'}\n  next: {each.next_step}"
            )


def policy_as_text(found: "SubscriptionFailurePolicy") -> Sequence[object]:
    """Return a policy with a word for everything, set or not."""
    policy = structs.asdict(found.failure_policy)
    policy["dead_letter_topic"] = found.failure_policy.dead_letter_topic or "none"
    return [
        _Setting(
            topic=found.topic,
            subscription=found.subscription,
            subscription_type=found.subscription_type or "none yet",
            set="no, these are the defaults" if found.is_default else "yes",
            **policy,
        )
    ]


def policy_in_words(policy: "FailurePolicy") -> str:
    """Return what becomes of a message that fails, in a few words."""
    times = attempts_in_words(policy.max_redelivery_count + 1)
    match policy.poison_policy:
        case "DeadLetter":
            return f"to {policy.dead_letter_topic} after {times}"
        case "Drop":
            return f"dropped after {times}"
        case "Block":
            return f"block after {times}"


def attempts_in_words(count: int) -> str:
    """Return how often a message was, or may be, delivered."""
    return "1 attempt" if count == 1 else f"{count} attempts"


def _row(standing: SubscriptionStanding) -> _Row:
    return _Row(
        subscription=standing.subscription,
        topic=standing.topic,
        type=standing.type,
        state=standing.state,
        consumers=standing.active_consumers,
        lag=standing.lag,
        retry=standing.waiting_retry,
        blocked=standing.blocked,
        delayed=standing.delayed,
        failures=policy_in_words(standing.failure_policy),
    )


def _without(fields: dict[str, object], *names: str) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name not in names}
