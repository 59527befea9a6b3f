"""What becomes of messages that an app's handlers cannot handle, and who hears of it."""

from typing import Any

from pydanube.client.client import Client
from pydanube.client.consumer import Consumer
from pydanube.client.handlers import Subscriber, policy_wish
from pydanube.errors import Conflict, DanubeError, NotFound, NotSupported
from pydanube.model.failure_policies import FailurePolicyChange
from pydanube.model.policies import FailurePolicy
from pydanube.model.standing import SubscriptionStanding
from pydanube.observability.logging import get_logger

_log = get_logger(__name__)


async def agree_on_failures(client: Client, subscriber: Subscriber) -> None:
    """Have the failure policy set as the subscriber says, before it gets any message.

    What it does not say is only a default: a broker or a topic that has no such policies is told
    of in the log, and served all the same. NotFound while the topic is not there.
    """
    wish = policy_wish(subscriber.retries, subscriber.dead_letter)
    names = subscriber.topic, subscriber.subscription
    is_asked_for = wish.always != FailurePolicyChange()
    try:
        policy = await client.change_failure_policy(*names, wish.unless_set, unless_set=True)
        if is_asked_for:
            policy = await client.change_failure_policy(*names, wish.always)
    except NotFound:
        raise
    except NotSupported as error:
        if is_asked_for:
            raise NotSupported(
                f"this broker does not let clients set a failure policy ({error}); remove "
                "retries and dead_letter, and set it with danube-admin topics "
                "set-failure-policy"
            ) from error
        _log.warning(
            "this broker does not let clients set a failure policy; one failing "
            "message may block the others",
            topic=subscriber.topic,
            subscription=subscriber.subscription,
            next="danube-admin topics set-failure-policy",
        )
    except Conflict:
        if is_asked_for:  # The topic is not reliable: what fails there does not come again.
            raise
    else:
        _tell_policy(subscriber, policy)


def _tell_policy(subscriber: Subscriber, policy: FailurePolicy) -> None:
    _log.info(
        "messages that fail",
        topic=subscriber.topic,
        subscription=subscriber.subscription,
        attempts=policy.max_redelivery_count + 1,
        then=policy.poison_policy,
        dead_letter_topic=policy.dead_letter_topic or "none",
    )


async def tell_of_stops(consumer: Consumer[Any]) -> None:
    """Log when the consumer's subscription is blocked or stalled, and when it goes on."""
    try:
        async for standing in consumer.stops():
            _tell(standing)
    except DanubeError as error:
        _log.warning("no longer watching the subscription", reason=str(error))


def _tell(standing: SubscriptionStanding) -> None:
    place = {"topic": standing.topic, "subscription": standing.subscription}
    if not standing.is_stopped:
        _log.info("the subscription goes on", **place)
        return
    facts = {"offset": standing.offset, "attempts": standing.attempts, "reason": standing.reason}
    given = {name: value for name, value in facts.items() if value is not None}
    _log.warning(
        f"the subscription is {standing.state}; its messages wait until an operator acts",
        **place,
        **given,
        next=standing.next_step,
    )
