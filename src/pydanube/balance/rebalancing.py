"""Decides which topics move to which brokers, one look at the cluster at a time.

A look plans moves one after the other, each on the cluster as the ones before would leave it, so
that one cycle never overshoots. Everything is deterministic: ties break on ids and names, and
every leader would decide the same.
"""

from collections.abc import Iterator

from pydanube.balance.candidates import Candidate, MovableTopics, Pair, best_candidates
from pydanube.balance.cluster import BrokerLoad, ClusterLoad
from pydanube.balance.decisions import Decision, Move, RebalanceRequest
from pydanube.balance.history import MOVES_KEPT_MAX, History
from pydanube.balance.imbalance import Balance, measure
from pydanube.balance.limits import Hindrance, find_hindrance, find_hindrance_of_request
from pydanube.balance.scoring import weights_of
from pydanube.balance.settings import RebalanceSettings
from pydanube.model.ids import BrokerId

SPREAD_MIN = 2.0
"""While nobody stands out, brokers above the mean give only if the extremes differ by this."""
SPREAD_OF_MEAN_MIN = 0.1
_PEERS_TRIED_MAX = 4
_CANDIDATES_TRIED_MAX = 8
_GAIN_MIN = 1e-6


def decide(
    state: ClusterLoad,
    settings: RebalanceSettings,
    history: History,
    now_ms: int,
    request: RebalanceRequest | None = None,
) -> Decision:
    """Decide what moves now, if anything.

    Without `request` every limit holds. With one, somebody asked for moves: they are planned even
    if rebalancing is disabled, not due, cooling down or at its hourly limit, and for young topics
    too; never for blacklisted ones, never to a broker that is not active. A decision that is not
    carried out is a dry run. `now_ms` is the wall clock, as in reports and history.
    """
    compared = {each.broker: each for each in state.active if not _is_stale(each, settings, now_ms)}
    before = measure(list(compared.values()), settings.strategy)
    hindrance = (
        find_hindrance(before, settings, history, now_ms)
        if request is None
        else find_hindrance_of_request(before, settings, now_ms)
    )
    if hindrance is not None:
        return Decision(
            outcome=hindrance.outcome,
            reason=hindrance.reason,
            before=before,
            after=before,
            next_check_ms=_next_look_ms(hindrance, settings, now_ms),
        )
    movable = MovableTopics(settings, history, now_ms, any_age=request is not None)
    plan = _Plan(compared, settings, movable, before)
    for _ in range(_moves_max(settings, history, now_ms, request)):
        if not plan.add_move():
            break
    return plan.decision(now_ms)


def _next_look_ms(hindrance: Hindrance, settings: RebalanceSettings, now_ms: int) -> int:
    if hindrance.outcome == "not_due":
        return hindrance.next_check_ms
    # This was a look as well: the next is an interval away, however soon the limit is over.
    return max(hindrance.next_check_ms, now_ms + settings.check_interval_ms)


def _is_stale(broker: BrokerLoad, settings: RebalanceSettings, now_ms: int) -> bool:
    reported_ms = broker.reported_ms
    return reported_ms is not None and now_ms - reported_ms > settings.report_age_max_ms


def _moves_max(
    settings: RebalanceSettings, history: History, now_ms: int, request: RebalanceRequest | None
) -> int:
    if request is not None:
        return min(
            MOVES_KEPT_MAX, MOVES_KEPT_MAX if request.moves_max is None else request.moves_max
        )
    left = settings.moves_per_hour_max - len(history.moves_in_the_hour_before(now_ms))
    return min(settings.moves_per_cycle_max, left)


class _Plan:
    """Moves so far, and the cluster as they would leave it."""

    def __init__(
        self,
        brokers: dict[BrokerId, BrokerLoad],
        settings: RebalanceSettings,
        movable: MovableTopics,
        before: Balance,
    ) -> None:
        self._brokers = brokers
        self._settings = settings
        self._movable = movable
        self._before = before
        self._now = before
        self._moves: list[Move] = []

    def add_move(self) -> bool:
        """Plan one more move; False when the cluster would be balanced or nothing helps."""
        if self._now.coefficient_of_variation <= self._settings.release:
            return False
        for pair in self._pairs():
            movable = self._movable.of(pair.source)
            for candidate in best_candidates(pair, movable, _CANDIDATES_TRIED_MAX):
                if self._try(pair, candidate):
                    return True
        return False

    def decision(self, now_ms: int) -> Decision:
        """Return what was planned."""
        interval_ms = self._settings.check_interval_ms
        return Decision(
            outcome="move" if self._moves else "nothing_helps",
            reason=self._summary() if self._moves else self._excuse(),
            moves=tuple(self._moves),
            before=self._before,
            after=self._now,
            next_check_ms=now_ms + interval_ms,
        )

    def _pairs(self) -> Iterator[Pair]:
        """Name who gives and who takes, the most and the least loaded first."""
        weights = weights_of(list(self._brokers.values()), self._settings.strategy)
        loads = {each.broker: each.load for each in self._now.brokers}
        mean = self._now.mean_load
        takers = sorted((load, broker) for broker, load in loads.items() if load < mean)
        for source in _givers(self._now)[:_PEERS_TRIED_MAX]:
            for target_load, target in takers[:_PEERS_TRIED_MAX]:
                yield Pair(
                    source=self._brokers[source],
                    target=self._brokers[target],
                    source_load=loads[source],
                    target_load=target_load,
                    mean_load=mean,
                    source_weights=weights[source],
                    target_weights=weights[target],
                )

    def _try(self, pair: Pair, candidate: Candidate) -> bool:
        """Make the move part of the plan if the brokers would be more alike after it."""
        source, target, topic = pair.source.broker, pair.target.broker, candidate.topic
        brokers = dict(self._brokers)
        brokers[source] = pair.source.without_topic(topic)
        brokers[target] = pair.target.with_topic(topic, pair.source.topics[topic])
        then = measure(list(brokers.values()), self._settings.strategy)
        variation = self._now.coefficient_of_variation
        if then.coefficient_of_variation > variation - _GAIN_MIN:
            return False
        self._moves.append(
            Move(
                topic=topic,
                source=source,
                target=target,
                estimated_load=candidate.load,
                reason=f"broker {source} has load {pair.source_load:.1f} and broker {target} "
                f"{pair.target_load:.1f}, the mean is {pair.mean_load:.1f}; the topic takes "
                f"{candidate.load:.2f} along, imbalance {variation:.3f} becomes "
                f"{then.coefficient_of_variation:.3f}",
            )
        )
        self._movable.plan(topic, source)
        self._brokers, self._now = brokers, then
        return True

    def _summary(self) -> str:
        return (
            f"{_topics(len(self._moves))} should bring the imbalance from "
            f"{self._before.coefficient_of_variation:.3f} to "
            f"{self._now.coefficient_of_variation:.3f}; the level {self._settings.level} begins "
            f"at {self._settings.threshold:.2f}"
        )

    def _excuse(self) -> str:
        uneven = f"the imbalance is {self._now.coefficient_of_variation:.3f}"
        givers = _givers(self._now)
        if not givers:
            return (
                f"{uneven}, but loads from {self._now.min_load:.1f} to {self._now.max_load:.1f} "
                "are too small to stand out"
            )
        self._movable.of(self._brokers[givers[0]])
        refused = self._movable.refused[givers[0]].describe()
        return f"{uneven}, but broker {givers[0]} cannot give: {refused}"


def _givers(balance: Balance) -> list[BrokerId]:
    """Return who may give topics: the overloaded; then, if the spread is wide, all above the mean.

    The most loaded come first.
    """
    ranked = sorted(balance.brokers, key=lambda each: (-each.load, each.broker))
    spread = balance.max_load - balance.min_load
    wide = spread > max(SPREAD_MIN, SPREAD_OF_MEAN_MIN * balance.mean_load)
    return [
        each.broker
        for each in ranked
        if each.is_overloaded or (wide and each.load > balance.mean_load)
    ]


def _topics(count: int) -> str:
    return "a move" if count == 1 else f"{count} moves"
