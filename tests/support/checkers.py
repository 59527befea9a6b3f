"""The laws of messaging, as functions over what clients asked for and saw. Pure.

Whoever runs brokers, simulated or real, under whatever faults, records a history, reads every topic
once more when all is healed, and asks for the violations. None is the only good answer.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tests.support.history import Ack, Delivery, History, Nack

NAMED_MAX = 8

_Place = TypeVar("_Place")

Log = Mapping[int, str]
"""What a topic holds in the end: values by offset."""


@dataclass(frozen=True, slots=True)
class Violation:
    law: str
    text: str

    def __str__(self) -> str:
        return f"{self.law}: {self.text}"


@dataclass(frozen=True, slots=True)
class WatchedSubscription:
    """A subscription that began at the first message, and what may be expected of it."""

    topic: str
    name: str
    kind: str
    in_order: bool = False
    """Nobody nacks and no ack comes too late, so that order is never disturbed."""
    redeliveries_max: int | None = None
    """After how many of them a message is exhausted; None if none ever is."""
    dead_letters: str | None = None
    drops: bool = False
    poison: Callable[[str], bool] = lambda value: False
    """Which values its consumers never ack."""


@dataclass
class Evidence:
    """All there is to judge by."""

    history: History
    logs: dict[str, Log] = field(default_factory=dict)
    """Of every reliable topic, read once more in the end; those that were deleted are left out."""
    dead_letters: dict[str, list[Delivery]] = field(default_factory=dict)
    """What dead-letter topics hold in the end."""
    subscriptions: list[WatchedSubscription] = field(default_factory=list)
    best_effort: list[tuple[str, str]] = field(default_factory=list)
    """Topics and subscriptions that store nothing; everybody subscribed before anything came."""
    calm: bool = False
    """Nothing was broken, stopped or delayed."""
    restarts: int = 0
    remembers_sessions: bool = False
    """No clock says that a session has been idle for so long that it may be forgotten."""


def find_violations(evidence: Evidence) -> list[Violation]:
    """Return all that should never have happened."""
    found: list[Violation] = []
    for law in (
        acknowledged_messages_stay,
        offsets_have_no_gaps,
        an_offset_has_one_value,
        a_value_is_stored_once,
        sessions_are_remembered,
        nothing_comes_from_nowhere,
        offsets_follow_real_time,
        every_message_is_seen_and_settled,
        an_acknowledged_ack_is_final,
        an_ack_settles_only_what_was_delivered,
        order_is_kept,
        keys_keep_their_order,
        attempts_are_remembered,
        attempts_grow,
        dead_letters_are_the_exhausted,
        in_calm_everything_comes_once,
        ids_are_stable,
        best_effort_comes_once_at_most,
    ):
        found += law(evidence)
    return found


# What is stored.


def acknowledged_messages_stay(evidence: Evidence) -> Iterator[Violation]:
    """I1: what was answered with an offset is at that offset, for ever."""
    for topic, log in evidence.logs.items():
        kept = sorted(
            {
                (send.offset, send.value)
                for send in evidence.history.sends
                if send.topic == topic and send.outcome == "ok" and send.offset is not None
            }
        )
        lost = [(offset, value) for offset, value in kept if log.get(offset) != value]
        if lost:
            where = describe_loss(lost, kept)
            values = _some(f"{offset} ({value})" for offset, value in lost)
            text = f"{len(lost)} of {len(kept)} acknowledged are lost, {where}: {values}"
            yield Violation("lost write", f"{topic}: {text}")


def describe_loss(lost: Sequence[_Place], kept: Sequence[_Place]) -> str:
    """Tell a torn tail (postfix) from a lost block (middle) and a lost beginning (prefix)."""
    count = len(lost)
    if list(lost) == list(kept[:count]):
        return "all of them" if count == len(kept) else "a prefix"
    if list(lost) == list(kept[-count:]):
        return "a postfix"
    first = kept.index(lost[0])
    one_block = list(lost) == list(kept[first : first + count])
    return "one block in the middle" if one_block else "scattered in the middle"


def offsets_have_no_gaps(evidence: Evidence) -> Iterator[Violation]:
    for topic, log in evidence.logs.items():
        missing = [offset for offset in range(max(log, default=-1) + 1) if offset not in log]
        if missing:
            yield Violation("gap", f"{topic} holds nothing at {_some(missing)}")


def an_offset_has_one_value(evidence: Evidence) -> Iterator[Violation]:
    """I3: whoever is asked, whenever."""
    history = evidence.history
    values: dict[tuple[str, int], dict[str, None]] = defaultdict(dict)
    for topic, log in evidence.logs.items():
        for offset, value in log.items():
            values[topic, offset][value] = None
    for send in history.sends:
        if send.topic in evidence.logs and send.outcome == "ok" and send.offset is not None:
            values[send.topic, send.offset][send.value] = None
    for delivery in history.deliveries:
        if delivery.topic in evidence.logs:
            values[delivery.topic, delivery.offset][delivery.value] = None
    for (topic, offset), seen in values.items():
        if len(seen) > 1:
            yield Violation("inconsistent offset", f"{topic} at {offset} has {', '.join(seen)}")


def a_value_is_stored_once(evidence: Evidence) -> Iterator[Violation]:
    """I4: what is sent once, or repeated with its number, is at one offset; all answers say so."""
    history = evidence.history
    sent: dict[tuple[str, str], list[bool]] = defaultdict(list)
    places: dict[tuple[str, str], dict[int, None]] = defaultdict(dict)
    for topic, log in evidence.logs.items():
        for offset, value in log.items():
            places[topic, value][offset] = None
    for send in history.sends:
        sent[send.topic, send.value].append(send.numbered)
        if send.topic in evidence.logs and send.outcome == "ok" and send.offset is not None:
            places[send.topic, send.value][send.offset] = None
    for (topic, value), offsets in places.items():
        numbered = sent[topic, value]
        if len(offsets) > 1 and (len(numbered) == 1 or all(numbered)):
            yield Violation("stored twice", f"{topic} holds {value} at {_some(offsets)}")


def sessions_are_remembered(evidence: Evidence) -> Iterator[Violation]:
    """I4: who goes on counting is known, wherever the topic is: an answer made the session so."""
    if not evidence.remembers_sessions:
        return
    for send in evidence.history.sends:
        if send.continues_nothing:
            yield Violation(
                "forgotten session",
                f"{send.topic} did not know the producer {send.producer} when it sent {send.value}",
            )


def nothing_comes_from_nowhere(evidence: Evidence) -> Iterator[Violation]:
    """I5: what is stored or delivered was sent there, before, and not refused."""
    history = evidence.history
    sent: dict[tuple[str, str], int] = {}
    for send in history.sends:
        if send.outcome != "fail":
            sent.setdefault((send.topic, send.value), send.at)
    for topic, log in evidence.logs.items():
        foreign = [value for value in log.values() if (topic, value) not in sent]
        if foreign:
            yield Violation(
                "aborted read", f"{topic} holds {_some(foreign)}, never sent or refused"
            )
    for delivery in history.deliveries:
        if delivery.topic in evidence.dead_letters:
            continue
        at = sent.get((delivery.topic, delivery.value))
        if at is None or at > delivery.at:
            yield Violation("aborted read", f"{_in_words(delivery)} was never sent, or refused")


def offsets_follow_real_time(evidence: Evidence) -> Iterator[Violation]:
    """I8: a send's offset exceeds every offset that was answered before the send began."""
    by_topic: dict[str, list[tuple[int, int, int, str]]] = defaultdict(list)
    began: dict[tuple[str, str], int] = {}
    for send in evidence.history.sends:
        first = began.setdefault((send.topic, send.value), send.at)
        if send.topic in evidence.logs and send.outcome == "ok" and send.offset is not None:
            assert send.ended is not None
            # Repeated, a numbered message is told the offset it had got before.
            at = first if send.numbered else send.at
            by_topic[send.topic].append((at, send.ended, send.offset, send.value))
    for topic, sends in by_topic.items():
        ends = sorted((ended, offset, value) for _, ended, offset, value in sends)
        highest, highest_value, passed = -1, "", 0
        for at, _, offset, value in sorted(sends):
            while passed < len(ends) and ends[passed][0] < at:
                if ends[passed][1] > highest:
                    _, highest, highest_value = ends[passed]
                passed += 1
            if offset <= highest:
                yield Violation(
                    "nonmonotonic send",
                    f"{topic}: {value} got offset {offset} although {highest_value} had been "
                    f"given {highest} before it was sent",
                )


# What is delivered.


def every_message_is_seen_and_settled(evidence: Evidence) -> Iterator[Violation]:
    """I2 and I12: nobody is forgotten, and nothing waits for ever."""
    for subscription in evidence.subscriptions:
        if subscription.drops and not evidence.calm:
            continue  # What was dropped leaves no trace, not even that it was seen.
        log = evidence.logs[subscription.topic]
        seen = {each.offset for each in _delivered(evidence, subscription)}
        seen |= _dead_offsets(evidence, subscription)
        unseen = [offset for offset in sorted(log) if offset not in seen]
        if unseen:
            where = describe_loss(unseen, sorted(log))
            yield Violation(
                "unseen",
                f"{_named(subscription)} never got {len(unseen)} of {len(log)} messages, {where}: "
                f"{_some(f'{offset} ({log[offset]})' for offset in unseen)}",
            )
        left = unsettled(evidence, subscription)
        if left:
            yield Violation("starvation", f"{_named(subscription)} never settled {_some(left)}")


def unsettled(evidence: Evidence, subscription: WatchedSubscription) -> list[int]:
    """Return the offsets that are neither acked nor dead-lettered nor dropped, as far as known."""
    if subscription.drops and not evidence.calm:
        return []
    done = {
        ack.offset for ack in _acks(evidence, subscription) if ack.outcome == "ok"
    } | _dead_offsets(evidence, subscription)
    log = evidence.logs[subscription.topic]
    return [
        offset
        for offset in sorted(log)
        if offset not in done and not (subscription.drops and subscription.poison(log[offset]))
    ]


def an_acknowledged_ack_is_final(evidence: Evidence) -> Iterator[Violation]:
    """I14: a consumer that comes after an ack was answered does not get the message again."""
    for subscription in evidence.subscriptions:
        answered: dict[int, int] = {}
        for ack in _acks(evidence, subscription):
            if ack.outcome == "ok":
                assert ack.ended is not None
                answered[ack.offset] = min(ack.ended, answered.get(ack.offset, ack.ended))
        for delivery in _delivered(evidence, subscription):
            at = answered.get(delivery.offset)
            if at is not None and at < delivery.stream.session_at:
                yield Violation(
                    "acked and redelivered",
                    f"{_in_words(delivery)} came on a stream that was opened at "
                    f"{delivery.stream.session_at}, after its ack was answered at {at}",
                )


def an_ack_settles_only_what_was_delivered(evidence: Evidence) -> Iterator[Violation]:
    """I14: what a life of a subscription owes comes, whatever is acked that other lives delivered.

    Lives have their names in common, and the offsets of their messages.
    """
    history = evidence.history
    for life in history.lives:
        came = {
            delivery.offset
            for delivery in history.deliveries
            if life.read_from <= delivery.at <= life.read_to
            and (delivery.topic, delivery.subscription) == (life.topic, life.subscription)
        }
        lost = [f"{offset} ({value})" for offset, value in life.owed.items() if offset not in came]
        if lost:
            yield Violation(
                "settled by others",
                f"{life.subscription} of {life.topic}, {life.name}: {_some(lost)} never came, and "
                "nobody to whom it was delivered had acked it",
            )


def order_is_kept(evidence: Evidence) -> Iterator[Violation]:
    """I6 and I7: each stream goes on from the oldest unacked message, in offset order, no skips."""
    for subscription in evidence.subscriptions:
        if not subscription.in_order or subscription.kind not in ("Exclusive", "Failover"):
            continue
        acked = _first_acks(evidence, subscription)
        positions: dict[int, int] = {}
        for delivery in _delivered(evidence, subscription):
            stream, offset = delivery.stream.number, delivery.offset
            position = positions.get(stream, 0)
            if offset < position:
                yield Violation(
                    "nonmonotonic poll", f"{_in_words(delivery)} came after {position - 1}"
                )
                continue
            skipped = [
                each
                for each in range(position, offset)
                if acked.get(each, delivery.at) >= delivery.at
            ]
            if skipped:
                yield Violation(
                    "poll skip", f"{_in_words(delivery)} came before {_some(skipped)}, unacked"
                )
            positions[stream] = offset + 1


def keys_keep_their_order(evidence: Evidence) -> Iterator[Violation]:
    """I11: a message comes only after every earlier one of its key was acked, or given up."""
    for subscription in evidence.subscriptions:
        if subscription.kind != "KeyShared":
            continue
        acked = _first_acks(evidence, subscription)
        given_up = _dead_offsets(evidence, subscription)
        log = evidence.logs[subscription.topic]
        if subscription.drops:
            given_up |= {
                offset
                for offset, value in log.items()
                if subscription.poison(value) or not evidence.calm
            }
        key_of = {each.offset: _key(each) for each in _delivered(evidence, subscription)}
        by_key: dict[str, list[int]] = defaultdict(list)
        for offset in sorted(key_of):
            by_key[key_of[offset]].append(offset)
        for delivery in _delivered(evidence, subscription):
            for earlier in by_key[_key(delivery)]:
                if earlier >= delivery.offset:
                    break
                if earlier not in given_up and acked.get(earlier, delivery.at) >= delivery.at:
                    yield Violation(
                        "key order",
                        f"{_in_words(delivery)} came before {earlier} of the same key was acked",
                    )
                    break


def attempts_are_remembered(evidence: Evidence) -> Iterator[Violation]:
    """I13: a nack that was answered counts, also after a restart."""
    for subscription in evidence.subscriptions:
        counted: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for nack in evidence.history.nacks:
            same_broker = nack.boot == nack.boot_ended
            if _concerns(nack, subscription) and nack.outcome == "ok" and same_broker:
                assert nack.ended is not None
                counted[nack.offset].append((nack.ended, nack.attempt))
        for delivery in _delivered(evidence, subscription):
            for ended, attempt in counted[delivery.offset]:
                if ended < delivery.stream.session_at and delivery.attempt <= attempt:
                    yield Violation(
                        "forgotten attempt",
                        f"{_in_words(delivery)} had been nacked as attempt {attempt} at {ended}",
                    )
                    break


def attempts_grow(evidence: Evidence) -> Iterator[Violation]:
    """On one stream, every delivery of a message counts one more than the one before."""
    latest: dict[tuple[int, str, int], int] = {}
    for subscription in evidence.subscriptions:
        for delivery in _delivered(evidence, subscription):
            place = (delivery.stream.number, delivery.topic, delivery.offset)
            if delivery.attempt <= latest.get(place, 0):
                yield Violation(
                    "repeated attempt", f"{_in_words(delivery)} on one stream, had been there"
                )
            latest[place] = delivery.attempt


def dead_letters_are_the_exhausted(evidence: Evidence) -> Iterator[Violation]:
    """A message is dead-lettered when it has failed as often as allowed, whole and with its story.

    Every poison message ends there. A restart may repeat a dead letter, nothing else may.
    """
    for subscription in evidence.subscriptions:
        if subscription.dead_letters is None:
            continue
        assert subscription.redeliveries_max is not None
        log = evidence.logs[subscription.topic]
        letters = list(_letters(evidence, subscription))
        for letter in letters:
            yield from _judge_letter(letter, subscription, log, evidence)
        offsets = [_origin_offset(letter) for letter in letters]
        if evidence.restarts == 0 and len(set(offsets)) < len(offsets):
            repeated = sorted({each for each in offsets if offsets.count(each) > 1})
            yield Violation("repeated dead letter", f"{_named(subscription)}: {_some(repeated)}")


def _judge_letter(
    letter: Delivery, subscription: WatchedSubscription, log: Log, evidence: Evidence
) -> Iterator[Violation]:
    offset = _origin_offset(letter)
    attributes = letter.attributes
    if log.get(offset) != letter.value:
        yield Violation(
            "dead letter", f"{letter.value} claims offset {offset}, which is {log.get(offset)}"
        )
    wanted = {"x-original-topic-offset", "x-original-producer-id", "x-failure-reason"}
    missing = sorted(wanted - attributes.keys())
    # The reason is not journaled: after a restart, a message may be given up without one.
    if missing and not (missing == ["x-failure-reason"] and evidence.restarts):
        yield Violation("dead letter", f"{letter.value} lacks {missing}")
    if attributes.get("x-poison-policy") != "dead_letter":
        yield Violation("dead letter", f"{letter.value} says {attributes.get('x-poison-policy')}")
    assert subscription.redeliveries_max is not None
    attempts = int(attributes.get("x-delivery-attempt", "0"))
    if attempts <= subscription.redeliveries_max and not _is_redelivered(letter, evidence):
        yield Violation(
            "early dead letter",
            f"{letter.value} of {_named(subscription)} was given up after {attempts} deliveries, "
            f"with {subscription.redeliveries_max} redeliveries allowed",
        )
    if evidence.calm and not subscription.poison(letter.value):
        yield Violation("dead letter", f"{letter.value} was given up although nothing was wrong")


def in_calm_everything_comes_once(evidence: Evidence) -> Iterator[Violation]:
    """Where nobody nacks, waits or leaves, and nothing breaks, there is no second delivery."""
    if not evidence.calm:
        return
    for subscription in evidence.subscriptions:
        if not subscription.in_order:
            continue
        seen: set[int] = set()
        for delivery in _delivered(evidence, subscription):
            if delivery.offset in seen:
                yield Violation("repeated delivery", f"{_in_words(delivery)} in a calm world")
            seen.add(delivery.offset)


def ids_are_stable(evidence: Evidence) -> Iterator[Violation]:
    """A client goes on under its id, whatever happens to the broker."""
    given: dict[tuple[str, str], int] = {}
    for each in evidence.history.registered:
        known = given.setdefault((each.kind, each.name), each.id)
        if known != each.id:
            yield Violation("unstable id", f"{each.kind} {each.name} was {known}, is {each.id}")


def best_effort_comes_once_at_most(evidence: Evidence) -> Iterator[Violation]:
    """Messages that are not stored come at most once, in order; all of them in a calm world.

    Where connections break, messages that are on their way at a time may overtake each other.
    """
    history = evidence.history
    for topic, subscription in evidence.best_effort:
        offered: dict[str, int] = defaultdict(int)
        order: dict[str, int] = {}
        over: dict[str, int] = {}
        acknowledged: dict[str, None] = {}
        for send in history.sends:
            if send.topic == topic and send.outcome != "fail":
                offered[send.value] += 1
                order.setdefault(send.value, send.at)
                if send.outcome == "ok" and send.ended is not None:
                    over[send.value] = send.at if evidence.calm else send.ended
                if send.outcome == "ok":
                    acknowledged[send.value] = None
        got: dict[str, int] = defaultdict(int)
        latest: dict[tuple[int, str], int] = {}
        for each in history.deliveries:
            if (each.topic, each.subscription) != (topic, subscription):
                continue
            got[each.value] += 1
            if got[each.value] > offered[each.value]:
                yield Violation("repeated best effort", f"{_in_words(each)}")
            if offered[each.value] == 1:
                line = (each.stream.number, each.producer)
                if over.get(each.value, latest.get(line, 0)) < latest.get(line, 0):
                    yield Violation("best-effort order", f"{_in_words(each)} came too late")
                latest[line] = max(order[each.value], latest.get(line, 0))
        missing = [value for value in acknowledged if not got[value]]
        if missing and evidence.calm:
            yield Violation("best effort", f"{topic} {subscription} missed {_some(missing)}")


# Looking things up.


def _delivered(evidence: Evidence, subscription: WatchedSubscription) -> Iterator[Delivery]:
    for delivery in evidence.history.deliveries:
        if _concerns(delivery, subscription):
            yield delivery


def _acks(evidence: Evidence, subscription: WatchedSubscription) -> Iterator[Ack]:
    for ack in evidence.history.acks:
        if _concerns(ack, subscription):
            yield ack


def _concerns(entry: Ack | Nack | Delivery, subscription: WatchedSubscription) -> bool:
    return entry.subscription == subscription.name and entry.topic == subscription.topic


def _first_acks(evidence: Evidence, subscription: WatchedSubscription) -> dict[int, int]:
    """Return when each offset was first asked to be settled; from then on it may be."""
    first: dict[int, int] = {}
    for ack in _acks(evidence, subscription):
        first.setdefault(ack.offset, ack.at)
    return first


def _letters(evidence: Evidence, subscription: WatchedSubscription) -> Iterator[Delivery]:
    seen: set[int] = set()
    for letter in evidence.dead_letters.get(subscription.dead_letters or "", ()):
        origin = (
            letter.attributes.get("x-original-topic"),
            letter.attributes.get("x-original-subscription"),
        )
        if origin == (subscription.topic, subscription.name) and letter.offset not in seen:
            seen.add(letter.offset)
            yield letter


def _dead_offsets(evidence: Evidence, subscription: WatchedSubscription) -> set[int]:
    return {_origin_offset(letter) for letter in _letters(evidence, subscription)}


def _is_redelivered(letter: Delivery, evidence: Evidence) -> bool:
    """Tell whether the letter's own redelivery may have hidden how often the original failed."""
    return any(
        stream.consumer == letter.stream.consumer and stream.number < letter.stream.number
        for stream in evidence.history.streams
    )


def _origin_offset(letter: Delivery) -> int:
    return int(letter.attributes.get("x-original-topic-offset", "-1"))


def _key(delivery: Delivery) -> str:
    return delivery.key if delivery.key is not None else delivery.producer


def _named(subscription: WatchedSubscription) -> str:
    return f"{subscription.kind} subscription {subscription.name} of {subscription.topic}"


def _in_words(delivery: Delivery) -> str:
    return (
        f"{delivery.value} (offset {delivery.offset} of {delivery.topic}, {delivery.subscription}, "
        f"attempt {delivery.attempt}, stream {delivery.stream.number} of "
        f"{delivery.stream.consumer}, received at {delivery.at})"
    )


def _some(things: Iterable[object]) -> str:
    listed = [str(thing) for thing in things]
    more = f" and {len(listed) - NAMED_MAX} more" if len(listed) > NAMED_MAX else ""
    return ", ".join(listed[:NAMED_MAX]) + more
