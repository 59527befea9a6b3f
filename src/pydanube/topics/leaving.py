"""Consumers that close of their own accord and keep their names."""

from contextlib import suppress

from pydanube.errors import NotFound
from pydanube.topics.registration import Registration


def say_goodbye(registration: Registration, consumer_id: int, peer: str) -> None:
    """Free the place of a consumer at once; one that is unknown is gone already.

    Whoever has lost its name to another connection speaks for nobody.
    """
    with suppress(NotFound):
        registered = registration.consumer(consumer_id)
        if not registered.consumer.is_superseded(peer):
            registered.subscription.say_goodbye(registered.consumer)
