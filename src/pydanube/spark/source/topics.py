"""What a driver asks brokers about the topics of a read: which there are, and how far they go."""

import logging
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from pydanube.errors import AlreadyExists, DanubeError, InvalidRequest, NotFound
from pydanube.spark.brokers import Brokers
from pydanube.spark.options import ReadOptions, Selection
from pydanube.spark.source.planning import TopicState
from pydanube.wire.flight.blocking import Plan
from pydanube.wire.flight.descriptors import (
    PIECE_BYTES,
    TOPICS_MAX,
    CursorAction,
    CursorAnswer,
    FrontierAction,
    PlanCommand,
    TopicFrontier,
    TopicNotes,
)

_log = logging.getLogger("pydanube.spark")


class FrontierAnswer(Struct, frozen=True):
    """What the action `frontier` answers."""

    topics: dict[str, TopicFrontier]


class Topics:
    """The topics an option selects, as the brokers know them now."""

    def __init__(self, brokers: Brokers, selection: Selection) -> None:
        self._brokers = brokers
        self._selection = selection
        self.bases: tuple[str, ...] = selection.names

    def discover(self) -> None:
        """Look for the topics of a pattern; named topics are what they are."""
        if self._selection.pattern is None:
            return
        pattern = re.compile(self._selection.pattern)
        found = self._brokers.call(lambda broker: broker.topics())
        self.bases = tuple(sorted(each.topic for each in found if _matches(pattern, each)))

    def states(
        self, after: Mapping[str, int] | None = None, wait_ms: int = 0
    ) -> dict[str, TopicState]:
        """Return what there is, by physical topic; topics that are gone are absent.

        With `wait_ms`, waits so long for a topic that has more than `after`.
        """
        if not self.bases:
            return {}
        try:
            return self._frontiers(self.bases, after or {}, wait_ms)
        except NotFound:
            found: dict[str, TopicState] = {}
            for base in self.bases:
                try:
                    found |= self._frontiers([base], {}, 0)
                except NotFound:
                    continue
            return found

    def must_exist(self, states: Mapping[str, TopicState]) -> None:
        """Refuse to begin with nothing to read."""
        if not self.bases:
            raise NotFound(
                f"no topic matches {self._selection.describe()}; a pattern must match whole base "
                "names, such as /default/orders.*"
            )
        for base in self.bases:
            if self._selection.pattern is None and not any(
                name == base or name.startswith(f"{base}-part-") for name in states
            ):
                raise NotFound(
                    f"there is no topic {base}; check option topic, or publish to it first"
                )

    def _frontiers(
        self, bases: Sequence[str], after: Mapping[str, int], wait_ms: int
    ) -> dict[str, TopicState]:
        found: dict[str, TopicState] = {}
        chunks = [bases[at : at + TOPICS_MAX] for at in range(0, len(bases), TOPICS_MAX)]
        share = wait_ms // len(chunks)
        for chunk in chunks:
            action = FrontierAction(topics=list(chunk), after=dict(after), wait_ms=share)
            answer = self._brokers.act("frontier", action, FrontierAnswer, share)
            found |= {name: _state(each) for name, each in answer.topics.items()}
        return found

    # Times.

    def at_time(self, states: Mapping[str, TopicState], time_ms: int) -> dict[str, int]:
        """Return the first offset of that time or later; where there is none yet, the next one.

        `states` were asked before: whatever has come since is not skipped.
        """
        found = {name: state.frontier for name, state in states.items()}
        for base in self.bases:
            plan = self.plan(PlanCommand(topic=base, from_time_ms=time_ms, piece_bytes=2**62))
            for piece in reversed(plan.pieces):
                if piece.topic in found:
                    found[piece.topic] = min(piece.from_, found[piece.topic])
        return found

    def plan(self, command: PlanCommand) -> Plan:
        """Ask where a range lies."""
        return self._brokers.call(lambda broker: broker.plan(command))

    def segments_between(self, ranges: Mapping[str, tuple[int, int]]) -> list[Plan]:
        """Plan ranges by physical topic: one plan per base."""
        plans = []
        for base in self.bases:
            wanted = {
                name: bounds
                for name, bounds in ranges.items()
                if name == base or name.startswith(f"{base}-part-")
            }
            if wanted:
                command = PlanCommand(topic=base, ranges=wanted, piece_bytes=PIECE_BYTES)
                plans.append(self.plan(command))
        return plans


class Cursors:
    """Mirrors a stream's progress at the broker: a subscription without consumers per topic.

    The checkpoint is the truth. A mirror only moves forward, and its failures stop nothing.
    """

    def __init__(self, brokers: Brokers, options: ReadOptions) -> None:
        assert options.subscription is not None
        self._brokers = brokers
        self._name = options.subscription
        self._hold = options.hold_retention

    def position(self, topic: str) -> int | None:
        """Return where the cursor stands; None if there is none."""
        action = CursorAction(topic=topic, subscription=self._name)
        try:
            answer = self._brokers.act("cursor.get", action, CursorAnswer)
        except InvalidRequest:  # NotFound among them: no such topic or subscription.
            return None
        return answer.position

    def begin(self, starts: Mapping[str, int]) -> dict[str, int]:
        """Create the cursors there are not yet; return where each stands."""
        found = {}
        for topic, position in starts.items():
            action = CursorAction(topic=topic, subscription=self._name, position=position)
            try:
                answer = self._brokers.act("cursor.create", action, CursorAnswer)
                found[topic] = answer.position
            except AlreadyExists:
                standing = self.position(topic)
                found[topic] = position if standing is None else standing
        return found

    def advance(self, positions: Mapping[str, int]) -> None:
        """Move forward; what cannot be moved is reported and left."""
        for topic, position in positions.items():
            action = CursorAction(topic=topic, subscription=self._name, position=position)
            try:
                self._move(action)
            except DanubeError as error:
                _log.warning("subscription %s of %s did not move: %s", self._name, topic, error)

    def _move(self, action: CursorAction) -> None:
        try:
            self._brokers.once(lambda broker: broker.act("cursor.advance", action, CursorAnswer))
        except NotFound:  # Of a topic that has entered since, or deleted by an operator.
            self._brokers.once(lambda broker: broker.act("cursor.create", action, CursorAnswer))


def _matches(pattern: "re.Pattern[str]", notes: TopicNotes) -> bool:
    return notes.dispatch == "reliable" and pattern.fullmatch(notes.topic) is not None


def _state(frontier: TopicFrontier) -> TopicState:
    return TopicState(
        id=frontier.id,
        earliest=frontier.earliest,
        frontier=frontier.frontier,
        row_bytes=frontier.mean_row_bytes,
    )
