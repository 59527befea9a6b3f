"""Subscriptions and their failure policies, as brokers tell them and are told."""

import msgspec
from msgspec import structs

from pydanube.client.schema_calls import Call
from pydanube.errors import DanubeError
from pydanube.model.failure_policies import FailurePolicyChange
from pydanube.model.policies import FailurePolicy
from pydanube.model.standing import SubscriptionStanding
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as pb
from pydanube.wire.danube.generated import PyDanube_pb2 as own

_OPTIONAL = frozenset({"offset", "attempts", "reason", "next_step"})


class PolicyCalls:
    """Changes failure policies in part, on the client port and on the admin port."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def change(
        self,
        topic: str,
        subscription: str,
        change: FailurePolicyChange,
        *,
        unless_set: bool = False,
    ) -> FailurePolicy:
        """Change what is given and leave the rest; return what holds then.

        NotSupported from brokers that can only replace a policy as a whole.
        """
        request = own.UpdateFailurePolicyRequest(
            topic=topic, subscription=subscription, unless_set=unless_set, **structs.asdict(change)
        )
        reply = await self._call(services.UPDATE_FAILURE_POLICY, request)
        fields = {name: getattr(reply, name) for name in FailurePolicy.__struct_fields__}
        return _checked(fields | {"dead_letter_topic": reply.dead_letter_topic or None})


def policy_of(policy: pb.SubscriptionFailurePolicy) -> FailurePolicy:
    """Return the policy of a broker's answer."""
    try:
        backoff = pb.SubscriptionBackoffStrategy.Name(policy.backoff_strategy)
        poison = pb.SubscriptionPoisonPolicy.Name(policy.poison_policy)
    except ValueError as error:
        raise DanubeError(f"the broker sent an invalid policy: {error}") from error
    return _checked(
        {
            "max_redelivery_count": policy.max_redelivery_count,
            "ack_timeout_ms": policy.ack_timeout_ms,
            "base_redelivery_delay_ms": policy.base_redelivery_delay_ms,
            "max_redelivery_delay_ms": policy.max_redelivery_delay_ms,
            "backoff_strategy": backoff,
            "dead_letter_topic": policy.dead_letter_topic or None,
            "poison_policy": poison,
        }
    )


def standing_of(told: pb.SubscriptionStanding) -> SubscriptionStanding:
    """Return how a subscription gets on, as a broker tells it."""
    given = {field.name for field, _ in told.ListFields()}
    fields = {
        name: getattr(told, name)
        for name in SubscriptionStanding.__struct_fields__
        if name not in _OPTIONAL or name in given
    }
    try:
        return msgspec.convert(
            fields | {"failure_policy": policy_of(told.failure_policy)}, SubscriptionStanding
        )
    except msgspec.ValidationError as error:
        raise DanubeError(f"the broker sent an invalid state: {error}") from error


def _checked(fields: dict[str, object]) -> FailurePolicy:
    try:
        return msgspec.convert(fields, FailurePolicy)
    except msgspec.ValidationError as error:
        raise DanubeError(f"the broker sent an invalid policy: {error}") from error
