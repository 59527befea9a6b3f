"""Chooses the broker for a topic that has none: a new one, or one that has left its broker."""

from collections.abc import Mapping

from msgspec import Struct

from pydanube.balance.cluster import BrokerLoad, ClusterLoad
from pydanube.balance.scoring import Strategy, scores_of
from pydanube.model.ids import BrokerId

SMALL_SCORE = 10
"""Below it, only the least loaded brokers are candidates."""


class Placement(Struct, frozen=True, kw_only=True):
    """Where a topic goes, and why; None when no broker can take it now."""

    broker: BrokerId | None
    reason: str


def choose_broker(
    cluster: ClusterLoad,
    topic: str,
    strategy: Strategy,
    *,
    last_chosen: BrokerId | None = None,
    source: BrokerId | None = None,
    wanted: BrokerId | None = None,
) -> Placement:
    """Choose an active broker for a topic; draining and drained ones never get any.

    A new topic goes in turn to the brokers that are about the least loaded, beginning after
    `last_chosen`. A topic that leaves `source` goes to the least loaded other broker, or to
    `wanted` if that one is active. Enter the choice with `cluster.with_assignment`, so that the
    next one sees it.
    """
    active = [each for each in cluster.active if each.broker != source]
    if not active:
        return Placement(broker=None, reason=_nobody(cluster, topic, source))
    if wanted is not None and any(each.broker == wanted for each in active):
        return Placement(broker=wanted, reason=f"broker {wanted} was asked for")
    scores = _whole_scores(active, strategy)
    least = min(scores.values())
    if source is not None:
        chosen = min(scores, key=lambda broker: (scores[broker], broker))
        return Placement(
            broker=chosen,
            reason=f"broker {chosen} is the least loaded besides broker {source} "
            f"({strategy} score {least})",
        )
    highest = least if least < SMALL_SCORE else least + max(1, least // 10)
    candidates = sorted(broker for broker, score in scores.items() if score <= highest)
    chosen = _next_after(last_chosen, candidates)
    return Placement(
        broker=chosen,
        reason=f"broker {chosen} is next of {len(candidates)} with a {strategy} score "
        f"of at most {highest}",
    )


def _whole_scores(brokers: list[BrokerLoad], strategy: Strategy) -> Mapping[BrokerId, int]:
    # Whole numbers, so that brokers that differ by a trifle take turns.
    return {broker: int(score) for broker, score in scores_of(brokers, strategy).items()}


def _next_after(last: BrokerId | None, candidates: list[BrokerId]) -> BrokerId:
    later = [broker for broker in candidates if last is not None and broker > last]
    return later[0] if later else candidates[0]


def _nobody(cluster: ClusterLoad, topic: str, source: BrokerId | None) -> str:
    modes = ", ".join(f"{each.broker} is {each.mode}" for each in cluster.brokers.values())
    besides = f" besides broker {source}" if source is not None else ""
    return (
        f"no active broker{besides} can take {topic} ({modes or 'none is registered'}); "
        "start or activate one"
    )
