"""Finds the topic whose move from one broker to another helps most."""

from collections.abc import Iterator, Mapping
from heapq import nsmallest

from msgspec import Struct

from pydanube.balance.cluster import BrokerLoad, Figures, ServedTopic
from pydanube.balance.history import History
from pydanube.balance.scoring import move_effort
from pydanube.balance.settings import RebalanceSettings
from pydanube.model.ids import BrokerId

GAP_PART_MAX = 0.75
"""A topic that is a larger part of the gap would only make two brokers trade places."""


class Refused(Struct):
    """How many topics of a broker cannot go, by the reason."""

    topics: int = 0
    blacklisted: int = 0
    young: int = 0
    moved: int = 0
    unreported: int = 0

    def describe(self) -> str:
        """Say it in words."""
        free = self.topics - self.blacklisted - self.young - self.moved - self.unreported
        parts = (
            (self.blacklisted, "blacklisted"),
            (self.young, "too young to move"),
            (self.moved, "moved lately"),
            (self.unreported, "in no report yet"),
            (free, "too light or too heavy to help"),
        )
        named = ", ".join(f"{count} {what}" for count, what in parts if count)
        return f"its topics are {named}" if named else "it has no topic to give"


class MovableTopics:
    """The topics of each broker that may move, looked for once for a whole plan."""

    def __init__(
        self, settings: RebalanceSettings, history: History, now_ms: int, *, any_age: bool
    ) -> None:
        self._settings = settings
        self._now_ms = now_ms
        self._any_age = any_age
        since_ms = now_ms - settings.topic_age_min_ms
        self._moved_lately = {each.topic for each in history.moves_since(since_ms)}
        self._of_broker: dict[BrokerId, dict[str, ServedTopic]] = {}
        self._planned: set[str] = set()
        self.refused: dict[BrokerId, Refused] = {}

    def of(self, broker: BrokerLoad) -> Mapping[str, ServedTopic]:
        """Return what may leave the broker."""
        if broker.broker not in self._of_broker:
            refused = self.refused[broker.broker] = Refused(topics=len(broker.topics))
            self._of_broker[broker.broker] = {
                name: topic
                for name, topic in broker.topics.items()
                if self._may_move(name, topic, refused)
            }
        return self._of_broker[broker.broker]

    def plan(self, topic: str, source: BrokerId) -> None:
        """Remember that a topic will move: a plan moves no topic twice."""
        del self._of_broker[source][topic]
        self._planned.add(topic)

    def _may_move(self, name: str, topic: ServedTopic, refused: Refused) -> bool:
        if self._settings.blacklist.match(name):
            refused.blacklisted += 1
        elif not topic.reported:
            refused.unreported += 1
        elif name in self._planned or (name in self._moved_lately and not self._any_age):
            refused.moved += 1
        elif self._is_young(topic) and not self._any_age:
            refused.young += 1
        else:
            return True
        return False

    def _is_young(self, topic: ServedTopic) -> bool:
        since_ms = topic.served_since_ms
        return since_ms is not None and self._now_ms - since_ms < self._settings.topic_age_min_ms


class Pair(Struct, frozen=True, kw_only=True):
    """A broker that gives and one that takes, with their scores and weights."""

    source: BrokerLoad
    target: BrokerLoad
    source_load: float
    target_load: float
    mean_load: float
    source_weights: Figures
    target_weights: Figures


class Candidate(Struct, frozen=True, order=True):
    """A topic that may move; the least is the best."""

    distance: float
    """How far its load is from what brings one of the two to the mean."""
    effort: float
    topic: str
    load: float


def best_candidates(
    pair: Pair, movable: Mapping[str, ServedTopic], count_max: int
) -> list[Candidate]:
    """Return the topics that would help most, best first; ties go to those that disturb least."""
    return nsmallest(count_max, _fitting(pair, movable))


def _fitting(pair: Pair, movable: Mapping[str, ServedTopic]) -> Iterator[Candidate]:
    gap = pair.source_load - pair.target_load
    wanted = min(pair.source_load - pair.mean_load, pair.mean_load - pair.target_load)
    for name, topic in movable.items():
        lost = topic.figures.weighed(pair.source_weights)
        won = topic.figures.weighed(pair.target_weights)
        if lost > 0 and lost + won <= 2 * GAP_PART_MAX * gap:
            yield Candidate(abs(lost - wanted), move_effort(topic.figures), name, lost)
