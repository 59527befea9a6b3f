"""Changing a failure policy in part. Pure."""

import msgspec
from msgspec import Struct, structs

from pydanube.errors import InvalidRequest
from pydanube.model.names import check_topic_name
from pydanube.model.policies import BackoffStrategy, FailurePolicy, PoisonPolicy
from pydanube.model.standing import dead_letter_topic_of


class FailurePolicyChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What shall be otherwise; None stays as it is."""

    max_redelivery_count: int | None = None
    ack_timeout_ms: int | None = None
    base_redelivery_delay_ms: int | None = None
    max_redelivery_delay_ms: int | None = None
    backoff_strategy: BackoffStrategy | None = None
    dead_letter_topic: str | None = None
    poison_policy: PoisonPolicy | None = None


def changed_policy(policy: FailurePolicy, change: FailurePolicyChange, topic: str) -> FailurePolicy:
    """Return the policy of a subscription of `topic` with what is given in it, and checked.

    Dead letters for which no topic is known go to the topic's name with -dlq behind it.
    """
    given = {name: value for name, value in structs.asdict(change).items() if value is not None}
    if change.dead_letter_topic is not None:
        given["dead_letter_topic"] = change.dead_letter_topic.strip() or None
    fields = structs.asdict(policy) | given
    if fields["poison_policy"] == "DeadLetter" and fields["dead_letter_topic"] is None:
        fields["dead_letter_topic"] = dead_letter_topic_of(topic)
    try:
        changed = msgspec.convert(fields, FailurePolicy)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
    check_failure_policy(changed, topic)
    return changed


def check_failure_policy(policy: FailurePolicy, topic: str) -> None:
    """Refuse a policy that cannot work for subscriptions of `topic`."""
    if policy.poison_policy == "DeadLetter" and not (policy.dead_letter_topic or "").strip():
        raise InvalidRequest("poison policy dead_letter needs a dead_letter_topic")
    if policy.dead_letter_topic is None:
        return
    check_topic_name(policy.dead_letter_topic)
    if policy.dead_letter_topic == topic:
        raise InvalidRequest(
            f"dead letters of {topic} cannot go into {topic} itself, where they would fail again; "
            f"name another topic, such as {dead_letter_topic_of(topic)}"
        )
