"""Which topics a caller of Flight means: by name, by base, or by pattern."""

from collections.abc import Sequence

from pydanube.broker.servicers.flight_plan import log_of
from pydanube.errors import InvalidRequest
from pydanube.topics.manager import TopicManager
from pydanube.topics.patterns import bases_matching
from pydanube.topics.topic import Topic

CHOSEN_MAX = 10_000


def physical_topics(topics: TopicManager, name: str) -> list[Topic]:
    """Return the topic of that name, or the partitions of that base."""
    names = topics.partitions(name) or [name]
    return [topics.get(each) for each in names]


def chosen_topics(topics: TopicManager, names: Sequence[str], pattern: str | None) -> list[Topic]:
    """Return the reliable topics that names or a pattern choose, each once.

    A named topic that is missing, or keeps no messages, is refused; a pattern chooses those that
    are there and keep some, perhaps none.
    """
    if bool(names) == (pattern is not None):
        raise InvalidRequest("give either topics by name, or a pattern over their names")
    if pattern is not None:
        reliable = [topic.name for topic in topics if topic.is_reliable]
        names = bases_matching(reliable, pattern)
    found = {topic.name: topic for name in names for topic in physical_topics(topics, name)}
    chosen = [topic for topic in found.values() if pattern is None or topic.is_reliable]
    if len(chosen) > CHOSEN_MAX:
        raise InvalidRequest(
            f"{len(chosen)} topics and partitions are chosen; at most {CHOSEN_MAX} can be at once"
        )
    for topic in chosen:
        log_of(topic)
    return chosen
