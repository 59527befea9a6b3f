"""Flight's actions on segments: for jobs that join them elsewhere."""

from pydanube.broker.servicers.flight_plan import check_id, log_of, topic_id
from pydanube.broker.servicers.flight_topics import chosen_topics
from pydanube.errors import Conflict
from pydanube.storage.segments.compaction import Staged
from pydanube.topics.manager import TopicManager
from pydanube.topics.topic import Topic
from pydanube.wire.flight.descriptors import (
    SEGMENTS_MAX,
    JoinSegmentsAction,
    JoinSegmentsAnswer,
    ListedSegment,
    ListedTopic,
    ListSegmentsAction,
    ListSegmentsAnswer,
    decode,
    encode,
)


class FlightSegments:
    """Lists segments, and lets a joined one take the place of its parts."""

    def __init__(self, topics: TopicManager, store: str) -> None:
        self._topics = topics
        self._store = store

    async def list(self, body: bytes) -> bytes:
        """Answer from the catalogue."""
        action = decode(ListSegmentsAction, body, "the body of segments.list")
        chosen = chosen_topics(self._topics, [action.topic], None)
        # The oldest are enough: whoever joins them lists again.
        most = max(SEGMENTS_MAX // len(chosen), 2)
        found = {topic.name: _listed(topic, most) for topic in chosen}
        return encode(ListSegmentsAnswer(store=self._store, topics=found))

    async def join(self, body: bytes) -> bytes:
        """Check the object, and swap the entries in one transaction or not at all."""
        action = decode(JoinSegmentsAction, body, "the body of segments.join")
        topic = self._topics.get(action.topic)
        check_id(topic, action.id)
        staged = Staged(key=action.object, bytes=action.bytes, crc32c=action.crc32c)
        joined = await log_of(topic).adopt(action.keys, staged)
        return encode(
            JoinSegmentsAnswer(key=joined.key, from_=joined.base, to=joined.end, bytes=joined.bytes)
        )


def _listed(topic: Topic, most: int) -> ListedTopic:
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
