"""What a driver asks brokers about the topics of a read: which there are, and how far they go."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from pydanube.errors import InvalidRequest, NotFound
from pydanube.spark.brokers import Brokers
from pydanube.spark.options import Selection
from pydanube.spark.source.planning import TopicState
from pydanube.spark.source.rows import Place
from pydanube.wire.flight.blocking import Plan
from pydanube.wire.flight.descriptors import (
    PIECE_BYTES,
    TOPICS_MAX,
    FrontierAction,
    OffsetsAction,
    PlanCommand,
    TopicFrontier,
    TopicOffset,
)


class FrontierAnswer(Struct, frozen=True):
    """What the action `frontier` answers."""

    topics: dict[str, TopicFrontier]


class OffsetsAnswer(Struct, frozen=True):
    """What the action `offsets` answers."""

    topics: dict[str, TopicOffset]


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
        action = FrontierAction(pattern=self._selection.pattern)
        try:
            answer = self._brokers.act("frontier", action, FrontierAnswer)
        except InvalidRequest as error:
            raise InvalidRequest(f"option topicsPattern: {error}") from None
        self.bases = tuple(sorted({Place.of(name).topic for name in answer.topics}))

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
        chunks = _chunks(bases)
        share = wait_ms // len(chunks)
        for chunk in chunks:
            action = FrontierAction(topics=list(chunk), after=dict(after), wait_ms=share)
            answer = self._brokers.act("frontier", action, FrontierAnswer, share)
            found |= {name: _state(each) for name, each in answer.topics.items()}
        return found

    # Times.

    def at_time(self, states: Mapping[str, TopicState], time_ms: int) -> dict[str, int]:
        """Return the first offset of that time or later; where there is none yet, the next one."""
        found: dict[str, int] = {}
        for chunk in _chunks(self.bases):
            action = OffsetsAction(topics=list(chunk), time_ms=time_ms)
            answer = self._brokers.act("offsets", action, OffsetsAnswer)
            found |= {name: each.offset for name, each in answer.topics.items()}
        # A partition that is younger than the states is none of this read.
        return {name: found.get(name, state.frontier) for name, state in states.items()}

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


def _chunks(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[at : at + TOPICS_MAX] for at in range(0, len(names), TOPICS_MAX)]


def _state(frontier: TopicFrontier) -> TopicState:
    return TopicState(
        id=frontier.id,
        earliest=frontier.earliest,
        frontier=frontier.frontier,
        row_bytes=frontier.mean_row_bytes,
    )
