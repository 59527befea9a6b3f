"""Segments of topics that this broker serves: for jobs that join them elsewhere."""

from pydanube.broker.servicers.flight_plan import check_id, log_of, topic_id
from pydanube.errors import Conflict
from pydanube.storage.segments.staged import Staged
from pydanube.topics.topic import Topic
from pydanube.wire.flight.descriptors import (
    JoinSegmentsAction,
    JoinSegmentsAnswer,
    ListedSegment,
    ListedTopic,
)


async def join_segments(topic: Topic, action: JoinSegmentsAction) -> JoinSegmentsAnswer:
    """Check the object, and swap the entries in one transaction or not at all."""
    check_id(topic, action.id)
    staged = Staged(key=action.object, bytes=action.bytes, crc32c=action.crc32c)
    joined = await log_of(topic).adopt(action.keys, staged)
    return JoinSegmentsAnswer(key=joined.key, from_=joined.base, to=joined.end, bytes=joined.bytes)


def listed_segments(topic: Topic, most: int) -> ListedTopic:
    """Return the oldest segments, from the catalogue."""
    segments = log_of(topic).segments
    if segments is None:
        raise Conflict(f"topic {topic.name} is kept in the journal alone, without segments")
    return ListedTopic(
        id=topic_id(topic),
        epoch=segments.origin.epoch,
        segments=[
            ListedSegment(
                key=each.key,
                from_=each.base,
                to=each.end,
                bytes=each.bytes,
                raw_bytes=each.raw_bytes,
                crc32c=each.crc32c,
            )
            for each in segments.entries()[:most]
        ],
    )
