"""The laws of a chaos run, as functions over what was written down. Pure.

They are those of `tests.support.checkers`, for clients of several kinds in several processes, and
for topics and subscriptions that are deleted and made again under their names.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.eras import Eras
from tests.chaos.history import BROKER, Delivery, History, Send
from tests.chaos.schedule import BROKERS, SubscriptionPlan
from tests.support.checkers import Violation, describe_loss

NAMED_MAX = 6
FAILOVER_SECONDS_MAX = 10.0
"""What a fault on a minority explains: the others notice it and take its topics."""
REPEATED_SECONDS_MAX = 60.0
"""An acked message that comes again later than this was not on its way; it was forgotten."""

Log = Mapping[int, str]
"""What a topic holds in the end: values by offset."""


@dataclass
class Evidence:
    """All there is to judge by."""

    history: History
    logs: Mapping[str, Log]
    """Of each topic that could be read in the end."""
    topics: Sequence[str]
    subscriptions: Sequence[SubscriptionPlan]
    began: float
    """When clients began to publish."""
    ended: float
    """When they stopped."""
    pause_seconds_max: float
    moves: bool = True
    """Other brokers take the topics of one that fails; else they wait for it."""
    eras: Eras = field(init=False)

    def __post_init__(self) -> None:
        self.eras = Eras(self.history.deeds)


def find_violations(evidence: Evidence) -> list[Violation]:
    """Return all that should never have happened."""
    laws: tuple[Callable[[Evidence], Iterable[Violation]], ...] = (
        every_topic_can_be_read,
        acknowledged_messages_stay,
        offsets_have_no_gaps,
        an_offset_has_one_value,
        what_is_numbered_is_stored_once,
        nothing_comes_from_nowhere,
        offsets_follow_real_time,
        everything_is_seen,
        keys_keep_their_order,
        an_answered_ack_is_final,
        what_was_deleted_stays_away,
        pauses_end,
        everybody_recovers,
    )
    return [violation for law in laws for violation in law(evidence)]


# What is stored.


def every_topic_can_be_read(evidence: Evidence) -> Iterator[Violation]:
    for topic in evidence.topics:
        if topic not in evidence.logs:
            yield Violation("unreadable", f"{topic} could not be read when all was healed")


def owed(evidence: Evidence, topic: str) -> list[Send]:
    """Return what was acknowledged and certainly belongs to the topic that is there in the end."""
    last = evidence.eras.last_of_topic(topic)
    return [
        send
        for send in evidence.history.sends
        if send.topic == topic
        and send.outcome == "ok"
        and evidence.eras.of_topic(topic, send.began, send.ended) == last
    ]


def lost(evidence: Evidence, topic: str) -> list[Send]:
    """Return what was acknowledged and is not there, or not where the answer said."""
    log = evidence.logs.get(topic)
    if log is None:
        return []
    held = set(log.values())
    return [
        send
        for send in owed(evidence, topic)
        if (send.value not in held if send.offset is None else log.get(send.offset) != send.value)
    ]


def acknowledged_messages_stay(evidence: Evidence) -> Iterator[Violation]:
    for topic in evidence.logs:
        missing = {(send.ended, send.value) for send in lost(evidence, topic)}
        if missing:
            kept = sorted({(send.ended, send.value) for send in owed(evidence, topic)})
            where = describe_loss(sorted(missing), kept)
            values = _some(value for _, value in sorted(missing))
            text = f"{len(missing)} of {len(kept)} acknowledged are lost, {where}: {values}"
            yield Violation("lost", f"{topic}: {text}")


def offsets_have_no_gaps(evidence: Evidence) -> Iterator[Violation]:
    """Wherever a topic begins, for a name may go on counting where its earlier topic ended."""
    for topic, log in evidence.logs.items():
        missing = [
            each for each in range(min(log, default=0), max(log, default=-1)) if each not in log
        ]
        if missing:
            yield Violation("gap", f"{topic} holds nothing at {_some(missing)}")


def an_offset_has_one_value(evidence: Evidence) -> Iterator[Violation]:
    eras = evidence.eras
    values: dict[tuple[str, int, int], dict[str, None]] = defaultdict(dict)
    born: dict[tuple[str, str], int | None] = {}
    for topic, log in evidence.logs.items():
        for offset, value in log.items():
            values[topic, eras.last_of_topic(topic), offset][value] = None
    for send in evidence.history.sends:
        era = eras.of_topic(send.topic, send.began, send.ended)
        born[send.topic, send.value] = era
        if send.outcome == "ok" and send.offset is not None and era is not None:
            values[send.topic, era, send.offset][send.value] = None
    for each in evidence.history.deliveries:
        era = born.get((each.topic, each.value))
        if era is not None:
            values[each.topic, era, each.offset][each.value] = None
    for (topic, _, offset), seen in values.items():
        if len(seen) > 1:
            yield Violation("two values", f"{topic} at {offset} has {', '.join(seen)}")


def what_is_numbered_is_stored_once(evidence: Evidence) -> Iterator[Violation]:
    numbered = {send.value for send in evidence.history.sends if send.numbered}
    for topic, log in evidence.logs.items():
        for value, offsets in _places(log).items():
            if len(offsets) > 1 and value in numbered:
                yield Violation("stored twice", f"{topic} holds {value} at {_some(offsets)}")


def nothing_comes_from_nowhere(evidence: Evidence) -> Iterator[Violation]:
    sent = {(send.topic, send.value) for send in evidence.history.sends if send.outcome != "failed"}
    for topic, log in evidence.logs.items():
        foreign = [value for value in log.values() if (topic, value) not in sent]
        if foreign:
            yield Violation("never sent", f"{topic} holds {_some(foreign)}, never sent or refused")
    for each in evidence.history.deliveries:
        if (each.topic, each.value) not in sent:
            yield Violation("never sent", f"{_in_words(each)} was never sent, or refused")


def offsets_follow_real_time(evidence: Evidence) -> Iterator[Violation]:
    """A message lies behind all that were acknowledged before it was sent."""
    for topic, log in evidence.logs.items():
        places = {value: offsets[0] for value, offsets in _places(log).items() if len(offsets) == 1}
        sends = [send for send in owed(evidence, topic) if send.value in places]
        ends = sorted((send.ended, places[send.value], send.value) for send in sends)
        highest, highest_value, passed = -1, "", 0
        for send in sends:
            while passed < len(ends) and ends[passed][0] < send.began:
                if ends[passed][1] > highest:
                    _, highest, highest_value = ends[passed]
                passed += 1
            if places[send.value] < highest:
                yield Violation(
                    "nonmonotonic send",
                    f"{topic}: {send.value} lies at {places[send.value]} although "
                    f"{highest_value} had been acknowledged at {highest} before it was sent",
                )


# What is delivered.


def unseen(evidence: Evidence, topic: str, subscription: str) -> list[tuple[int, str]]:
    """Return what the subscription that is there in the end has never delivered."""
    since = evidence.eras.subscription_began(topic, subscription)
    seen = {
        each.value
        for each in evidence.history.deliveries
        if each.topic == topic and each.subscription == subscription and each.at > since
    }
    log = evidence.logs.get(topic, {})
    return [(offset, log[offset]) for offset in sorted(log) if log[offset] not in seen]


def everything_is_seen(evidence: Evidence) -> Iterator[Violation]:
    """Also by a subscription that was dropped and made again: it begins at the first message."""
    for topic, log in evidence.logs.items():
        for plan in evidence.subscriptions:
            missing = unseen(evidence, topic, plan.name)
            if not missing:
                continue
            where = describe_loss(missing, sorted(log.items()))
            text = (
                f"subscription {plan.name} of {topic} never got {len(missing)} of {len(log)}, "
                f"{where}: {_some(f'{offset} ({value})' for offset, value in missing)}"
            )
            stale = _stale_acks(evidence, topic, plan.name, {offset for offset, _ in missing})
            if stale:
                yield Violation(
                    "stale ack", f"{text}; acks of an earlier life came for {_some(stale)}"
                )
            else:
                yield Violation("unseen", text)


def unsettled(history: History, topic: str, subscription: str, log: Log) -> set[str]:
    """Return what the subscription that is there in the end has still to deliver, or to settle.

    An ack without an answer may have settled a message; then that does not come again.
    """
    since = Eras(history.deeds).subscription_began(topic, subscription)
    settled: set[str] = set()
    tried: dict[str, float] = {}
    for ack in history.acks:
        if (ack.topic, ack.subscription) == (topic, subscription) and ack.ended > since:
            if ack.outcome == "ok" and not ack.late:
                settled.add(ack.value)
            tried[ack.value] = max(ack.ended, tried.get(ack.value, 0.0))
    latest: dict[str, float] = {}
    for each in history.deliveries:
        if (each.topic, each.subscription) == (topic, subscription) and each.at > since:
            latest[each.value] = max(each.at, latest.get(each.value, 0.0))
    settled |= {value for value, at in latest.items() if tried.get(value, 0.0) > at}
    return set(log.values()) - settled


def _stale_acks(evidence: Evidence, topic: str, subscription: str, offsets: set[int]) -> list[int]:
    """Return the offsets for which a consumer of an earlier topic or subscription sent an ack."""
    since = evidence.eras.subscription_began(topic, subscription)
    return sorted(
        {
            ack.offset
            for ack in evidence.history.acks
            if ack.late
            and (ack.topic, ack.subscription) == (topic, subscription)
            and ack.ended > since
            and ack.offset in offsets
        }
    )


def keys_keep_their_order(evidence: Evidence) -> Iterator[Violation]:
    """Where order is promised, the messages of a key first come in the order of their offsets."""
    ordered = {plan.name for plan in evidence.subscriptions if plan.is_ordered}
    eras = evidence.eras
    born = {
        (send.topic, send.value): eras.of_topic(send.topic, send.began, send.ended)
        for send in evidence.history.sends
    }
    furthest: dict[tuple[object, ...], Delivery] = {}
    seen: set[tuple[object, ...]] = set()
    for each in evidence.history.deliveries:
        era = born.get((each.topic, each.value))
        life = eras.of_subscription(each.topic, each.subscription, each.session, each.at)
        if each.subscription not in ordered or era is None or life is None:
            continue
        place = (each.topic, each.subscription, era, life)
        if (*place, each.offset) in seen:
            continue
        seen.add((*place, each.offset))
        before = furthest.get((*place, each.key))
        if before is not None and before.offset > each.offset:
            yield Violation("out of order", f"{_in_words(each)} came after {before.offset}")
        else:
            furthest[*place, each.key] = each


def an_answered_ack_is_final(evidence: Evidence) -> Iterator[Violation]:
    """Who subscribes after the answer does not get the message; nobody gets it much later."""
    eras = evidence.eras
    answered: dict[tuple[object, ...], float] = {}
    for ack in evidence.history.acks:
        if ack.outcome == "ok" and not ack.late:
            life = eras.of_subscription(ack.topic, ack.subscription, ack.began, ack.ended)
            if life is not None:
                place = (ack.topic, ack.subscription, life, ack.value)
                answered[place] = min(ack.ended, answered.get(place, ack.ended))
    for each in evidence.history.deliveries:
        life = eras.of_subscription(each.topic, each.subscription, each.session, each.at)
        at = answered.get((each.topic, each.subscription, life, each.value))
        if at is not None and (each.session > at or each.at > at + REPEATED_SECONDS_MAX):
            yield Violation(
                "acked and repeated", f"{_in_words(each)} came after its ack was answered at {at}"
            )


def what_was_deleted_stays_away(evidence: Evidence) -> Iterator[Violation]:
    eras = evidence.eras
    born = {
        (send.topic, send.value): eras.of_topic(send.topic, send.began, send.ended)
        for send in evidence.history.sends
    }
    for each in evidence.history.deliveries:
        era = born.get((each.topic, each.value))
        now = eras.of_topic(each.topic, each.session, each.session)
        if era is not None and now is not None and era < now:
            yield Violation(
                "back from the dead", f"{_in_words(each)} came from a topic deleted before"
            )
    for topic, log in evidence.logs.items():
        last = eras.last_of_topic(topic)
        eras_of_log = ((value, born.get((topic, value))) for value in log.values())
        dead = [value for value, era in eras_of_log if era is not None and era < last]
        if dead:
            yield Violation("back from the dead", f"{topic} holds {_some(dead)}, deleted before")


# Time.


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which a topic acknowledged nothing."""

    topic: str
    began: float
    ended: float
    harmed: float
    """How much of it is explained by what was done to brokers or to the topic."""

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def excess(self) -> float:
        """What no fault that lasted explains."""
        return self.seconds - self.harmed


def longest_pauses(evidence: Evidence) -> list[Pause]:
    """Return the longest pause of each topic, by what no fault explains."""
    found = []
    for topic in evidence.topics:
        harm = _merged(_excuses(evidence, topic))
        moments = sorted(
            send.ended
            for send in evidence.history.sends
            if send.topic == topic and send.outcome == "ok" and send.ended < evidence.ended
        )
        edges = [evidence.began, *moments, evidence.ended]
        pauses = [
            Pause(topic, first, second, _overlap(harm, first, second))
            for first, second in itertools.pairwise(edges)
        ]
        found.append(max(pauses, key=lambda pause: (pause.excess, pause.seconds)))
    return found


def _excuses(evidence: Evidence, topic: str) -> Iterator[tuple[float, float]]:
    """Return when a topic could not be expected to be served."""
    for deed in evidence.history.deeds:
        if deed.target == topic:
            yield deed.began, deed.ended
        elif deed.target.startswith(BROKER):
            minority = 2 * len(deed.target.split(",")) < BROKERS
            lasts = deed.ended - deed.began
            if evidence.moves and minority:
                lasts = min(lasts, FAILOVER_SECONDS_MAX)
            yield deed.began, deed.began + lasts


def pauses_end(evidence: Evidence) -> Iterator[Violation]:
    for pause in longest_pauses(evidence):
        if pause.excess > evidence.pause_seconds_max:
            yield Violation(
                "long pause",
                f"{pause.topic} acknowledged nothing for {pause.seconds:.1f} s from "
                f"{pause.began - evidence.began:.1f} s on; faults explain {pause.harmed:.1f} s",
            )


def everybody_recovers(evidence: Evidence) -> Iterator[Violation]:
    """What only a hand could mend, or nobody could."""
    for deed in evidence.history.deeds:
        if deed.kind == "helped":
            yield Violation("stuck", f"{deed.target}: {deed.detail}")
        elif deed.kind == "broken":
            yield Violation("broken", f"{deed.target}: {deed.detail}")


def _merged(windows: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for began, ended in sorted(windows):
        if merged and began <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(ended, merged[-1][1]))
        else:
            merged.append((began, ended))
    return merged


def _overlap(windows: Sequence[tuple[float, float]], began: float, ended: float) -> float:
    return sum(max(0.0, min(ended, last) - max(began, first)) for first, last in windows)


# Words.


def _places(log: Log) -> dict[str, list[int]]:
    places: dict[str, list[int]] = defaultdict(list)
    for offset in sorted(log):
        places[log[offset]].append(offset)
    return places


def _in_words(delivery: Delivery) -> str:
    return (
        f"{delivery.value} (offset {delivery.offset} of {delivery.topic}, {delivery.subscription}, "
        f"key {delivery.key}, by {delivery.consumer} at {delivery.at:.3f}, subscribed at "
        f"{delivery.session:.3f})"
    )


def _some(things: Iterable[object]) -> str:
    listed = [str(thing) for thing in things]
    more = f" and {len(listed) - NAMED_MAX} more" if len(listed) > NAMED_MAX else ""
    return ", ".join(listed[:NAMED_MAX]) + more
