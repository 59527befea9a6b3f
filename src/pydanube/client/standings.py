"""How subscriptions get on, as a client of theirs asks for it."""

from collections.abc import AsyncIterator, Sequence

from pydanube.client.brokers import Brokers
from pydanube.client.flight_actions import act
from pydanube.errors import DanubeError, InvalidRequest
from pydanube.model.standing import SubscriptionStanding
from pydanube.wire.flight.descriptors import TOPICS_MAX, SubscriptionsAction, SubscriptionsAnswer

WATCH_SECONDS = 5.0
"""How soon whoever watches a subscription hears of a change."""


async def standings(
    brokers: Brokers, topics: Sequence[str], subscription: str
) -> list[SubscriptionStanding]:
    """Return how a subscription gets on, on each topic or partition that is served now.

    InvalidRequest, or its kind NotSupported, from brokers that cannot tell.
    """
    found: list[SubscriptionStanding] = []
    for first in range(0, len(topics), TOPICS_MAX):
        some = list(topics[first : first + TOPICS_MAX])
        action = SubscriptionsAction(topics=some, subscription=subscription)
        answer = await act(brokers.service, "subscriptions", action, SubscriptionsAnswer)
        found += [each for told in answer.topics.values() for each in told.subscriptions]
    return found


async def changes(
    brokers: Brokers, topics: Sequence[str], subscription: str
) -> AsyncIterator[SubscriptionStanding]:
    """Tell when a subscription is blocked or stalled, on which topic, and when it goes on.

    What is stopped already is told first. Ends with a broker that cannot tell.
    """
    told: dict[str, SubscriptionStanding] = {}
    while True:
        try:
            found = await standings(brokers, topics, subscription)
        except InvalidRequest:
            return
        except DanubeError as error:
            if not error.retryable:
                raise
            brokers.ask_another()
            found = []
        for standing in found:
            before = told.get(standing.topic)
            if _is_news(before, standing):
                yield standing
            told[standing.topic] = standing
        await brokers.surroundings.clock.sleep(WATCH_SECONDS)


def _is_news(before: SubscriptionStanding | None, now: SubscriptionStanding) -> bool:
    if before is None or not (before.is_stopped and now.is_stopped):
        return now.is_stopped or (before is not None and before.is_stopped)
    return (before.state, before.offset) != (now.state, now.offset)
