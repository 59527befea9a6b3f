"""The progress of a stream, mirrored at the broker: a subscription without consumers."""

import logging
from collections.abc import Mapping

from msgspec import Struct

from pydanube.errors import Conflict, DanubeError, InvalidRequest
from pydanube.runtime.randomness import SystemRandomness
from pydanube.spark.brokers import Brokers
from pydanube.spark.options import ReadOptions
from pydanube.wire.flight.descriptors import TOPICS_MAX, CursorAction, CursorAnswer, Position

_log = logging.getLogger("pydanube.spark")


class CursorsAnswer(Struct, frozen=True):
    """What actions on cursors answer."""

    cursors: dict[str, CursorAnswer]


class Cursors:
    """Mirrors one run of a query. The checkpoint is the truth; a failure here stops nothing.

    The newest run holds the cursors, and they move forward alone. A run that ends without a word
    ceases to keep history when its lease does.
    """

    def __init__(self, brokers: Brokers, options: ReadOptions) -> None:
        assert options.subscription is not None
        self._brokers = brokers
        self._options = options
        self._name = options.subscription
        self._holder = f"spark-{SystemRandomness().below(2**64):016x}"
        self._held: set[str] = set()
        self._marks: dict[str, str] = {}
        self._mirrored: dict[str, int] = {}
        self._outdone = False

    def begin(self, starts: Mapping[str, int]) -> dict[str, int]:
        """Hold the cursors, creating those there are not yet; return where each stands."""
        found: dict[str, int] = {}
        for positions in _chunks(starts):
            action = self._lease(positions)
            answer = self._brokers.act("cursor.create", action, CursorsAnswer)
            found |= {topic: each.position for topic, each in answer.cursors.items()}
            self._held |= answer.cursors.keys()
            self._marks |= {
                topic: each.mark for topic, each in answer.cursors.items() if each.mark is not None
            }
        return found

    def advance(self, positions: Mapping[str, int]) -> None:
        """Move forward; what cannot be moved is reported and left."""
        moved = {
            topic: position
            for topic, position in positions.items()
            if self._mirrored.get(topic) != position
        }
        if self._outdone or not moved:
            return
        try:
            fresh = {topic: at for topic, at in moved.items() if topic not in self._held}
            self.begin(fresh)
            for part in _chunks(moved):
                self._move(part)
        except Conflict as error:
            self._outdone = True
            _log.warning("another run holds subscription %s now: %s", self._name, error)
        except DanubeError as error:
            _log.warning("subscription %s did not move: %s", self._name, error)
        else:
            self._mirrored |= moved

    def _move(self, positions: Mapping[str, Position]) -> None:
        action = CursorAction(
            subscription=self._name,
            positions=dict(positions),
            holder=self._holder,
            marks={topic: self._marks[topic] for topic in positions if topic in self._marks},
        )
        # Not repeated: the next batch brings the next position.
        self._brokers.once(lambda broker: broker.act("cursor.advance", action, CursorsAnswer))

    def _lease(self, positions: Mapping[str, Position]) -> CursorAction:
        return CursorAction(
            subscription=self._name,
            positions=dict(positions),
            existing="keep",
            holder=self._holder,
            ttl_ms=self._options.hold_ttl_ms,
            hold=self._options.hold_retention,
        )


def position_of(brokers: Brokers, topic: str, subscription: str) -> CursorAnswer | None:
    """Return where a subscription stands on a topic; None if there is none."""
    action = CursorAction(topic=topic, subscription=subscription)
    try:
        return brokers.act("cursor.get", action, CursorAnswer)
    except InvalidRequest:  # NotFound among them: no such topic or subscription.
        return None


def move_for_holder(brokers: Brokers, subscription: str, positions: Mapping[str, int]) -> None:
    """Advance cursors on behalf of whoever holds them; what cannot be moved is left."""
    for topic, position in positions.items():
        standing = position_of(brokers, topic, subscription)
        if standing is None or standing.position >= position:
            continue
        action = CursorAction(
            topic=topic,
            subscription=subscription,
            position=position,
            holder=standing.holder,
            marks={} if standing.mark is None else {topic: standing.mark},
        )
        try:
            brokers.act("cursor.advance", action, CursorAnswer)
        except DanubeError as error:
            _log.warning("subscription %s of %s did not move: %s", subscription, topic, error)


def _chunks(positions: Mapping[str, int]) -> list[dict[str, int]]:
    items = list(positions.items())
    return [dict(items[at : at + TOPICS_MAX]) for at in range(0, len(items), TOPICS_MAX)]
