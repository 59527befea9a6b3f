"""Which life of a topic or subscription a moment belongs to. Pure.

A topic that is deleted and made again is another topic under the same name, and so is a
subscription. What was under way while one was deleted may belong to either, so it proves nothing.
"""

from collections import defaultdict
from collections.abc import Iterable

from tests.chaos.history import Deed

DELETE_TOPIC = "delete topic"
UNSUBSCRIBE = "drop subscription"


class Eras:
    """The ends that operators made, by topic and by subscription."""

    def __init__(self, deeds: Iterable[Deed]) -> None:
        self._topics: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._subscriptions: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for deed in deeds:
            window = (deed.began, deed.ended)
            if deed.kind == DELETE_TOPIC:
                self._topics[deed.target].append(window)
            elif deed.kind == UNSUBSCRIBE:
                topic, _, subscription = deed.target.partition(" ")
                self._subscriptions[topic, subscription].append(window)

    def of_topic(self, topic: str, began: float, ended: float) -> int | None:
        """Return the number of the life in which something happened; None if that is unclear."""
        return _era(self._topics[topic], began, ended)

    def last_of_topic(self, topic: str) -> int:
        return len(self._topics[topic])

    def began(self, topic: str) -> float:
        """Return since when the topic is certainly the one that is there in the end."""
        return max((ended for _, ended in self._topics[topic]), default=0.0)

    def subscription_began(self, topic: str, subscription: str) -> float:
        """Return when the subscription that is there in the end may first have delivered."""
        windows = self._subscriptions[topic, subscription] + self._topics[topic]
        return max((began for began, _ in windows), default=0.0)

    def of_subscription(
        self, topic: str, subscription: str, began: float, ended: float
    ) -> int | None:
        windows = sorted(self._subscriptions[topic, subscription] + self._topics[topic])
        return _era(windows, began, ended)


def _era(windows: list[tuple[float, float]], began: float, ended: float) -> int | None:
    over = sum(window[1] < began for window in windows)
    not_begun = sum(window[0] > ended for window in windows)
    return over if over + not_begun == len(windows) else None
