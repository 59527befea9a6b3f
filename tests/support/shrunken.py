"""Bounds inside the broker made so small that a short life reaches every one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydanube.broker.servicers import consumer as consumer_servicer
from pydanube.dispatch import key_shared
from pydanube.storage.journal import survey
from pydanube.subscriptions.subscription import Subscription
from pydanube.topics import catalog, gathering
from tests.support.plans import Limits


@contextmanager
def shrunken(limits: Limits) -> Iterator[None]:
    """Let the broker have these limits."""

    def activate(self: Subscription, consumer: Any) -> None:
        consumer.credit = min(consumer.credit, limits.outbox_messages_max)
        before_activate(self, consumer)

    before_activate = Subscription._activate
    gathered = "BATCH_MESSAGES_MAX"
    if not hasattr(gathering, gathered):
        gathered = f"_{gathered}"
    places: list[tuple[Any, str, Any]] = [
        (Subscription, "_activate", activate),
        (consumer_servicer, "_GROUP_MESSAGES_MAX", limits.group_messages_max),
        (gathering, gathered, limits.gathered_messages_max),
        (key_shared, "READ_AHEAD_MAX", limits.read_ahead_max),
        (key_shared, "_READ_COUNT_MIN", limits.read_count_min),
        (catalog, "ID_BLOCK", limits.id_block),
        (survey, "CHUNK_BYTES", limits.chunk_bytes),
    ]
    before = [getattr(place, name) for place, name, _ in places]
    for place, name, value in places:
        setattr(place, name, value)
    try:
        yield
    finally:
        for (place, name, _), value in zip(places, before, strict=True):
            setattr(place, name, value)
