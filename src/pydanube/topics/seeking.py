"""Moves a subscription of a topic, or of all its partitions."""

from pydanube.errors import InvalidRequest, NotFound
from pydanube.model.ids import Offset
from pydanube.topics.manager import TopicManager
from pydanube.topics.positions import start_offset
from pydanube.topics.registration import Registration


async def seek_everywhere(
    topics: TopicManager, registration: Registration, topic: str, subscription: str, position: str
) -> list[tuple[str, Offset]]:
    """Move the subscription and return where it is now, by topic or partition.

    `position` is earliest, latest, offset:<number> or time:<milliseconds since 1970>.
    """
    names = topics.partitions(topic)
    if not names:
        raise NotFound(f"topic {topic} does not exist on this broker")
    if len(names) > 1 and position.startswith("offset:"):
        raise InvalidRequest(
            f"topic {topic} has {len(names)} partitions, and each counts its own offsets; name one "
            "of them, or move to earliest, latest or a time"
        )
    # Refused as a whole, or not at all.
    targets = []
    for name in names:
        log, _ = registration.subscription(name, subscription)
        targets.append((name, await start_offset(log, position)))
    for name, offset in targets:
        await registration.seek(name, subscription, offset)
    return targets
