"""What must hold of any history of sends, deliveries and acks, whatever happened meanwhile.

A workload notes what its clients saw in a `History`; every check is a pure function over it and
returns sentences, one for each violation. Values are unique: no two sends carry the same one.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

REPORTED_MAX = 5


class Outcome(Enum):
    """How an operation ended for the client that made it."""

    OK = "ok"
    FAILED = "failed"
    """It definitely did not happen."""
    UNKNOWN = "unknown"
    """It may have happened, or may happen yet."""


@dataclass(eq=False)
class Send:
    """One attempt to publish one value. Times are numbers of the history's own clock."""

    topic: str
    producer: str
    value: str
    started: int
    key: str | None = None
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None
    ended: int | None = None


@dataclass(frozen=True)
class Delivery:
    """One message as it arrived on one stream."""

    topic: str
    subscription: str
    stream: int
    stream_opened: int
    offset: int
    value: str
    at: int
    attempt: int = 1
    key: str | None = None


@dataclass(eq=False)
class Ack:
    """One attempt to settle one message."""

    topic: str
    subscription: str
    offset: int
    started: int
    outcome: Outcome = Outcome.UNKNOWN
    ended: int | None = None


@dataclass
class History:
    """All that clients saw, in the order they saw it. One event loop writes it."""

    sends: list[Send] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    _time: int = 0
    _streams: int = 0

    def now(self) -> int:
        """Return a number above all earlier ones."""
        self._time += 1
        return self._time

    def next_stream(self) -> int:
        self._streams += 1
        return self._streams

    def send(self, topic: str, producer: str, value: str, key: str | None = None) -> Send:
        """Note that a value is about to be sent."""
        sent = Send(topic, producer, value, self.now(), key)
        self.sends.append(sent)
        return sent

    def sent(self, send: Send, outcome: Outcome, offset: int | None = None) -> None:
        send.outcome, send.offset, send.ended = outcome, offset, self.now()

    def ack(self, topic: str, subscription: str, offset: int) -> Ack:
        """Note that a message is about to be acked."""
        ack = Ack(topic, subscription, offset, self.now())
        self.acks.append(ack)
        return ack

    def acked(self, ack: Ack, outcome: Outcome) -> None:
        ack.outcome, ack.ended = outcome, self.now()


def violations(history: History, subscriptions: Iterable[tuple[str, str]]) -> list[str]:
    """Return everything that is wrong, after a drain of subscriptions that saw every message."""
    return [
        *lost(history, subscriptions),
        *two_values(history),
        *repeated_values(history),
        *unsent_values(history),
        *send_order(history),
        *delivery_order(history),
        *acked_and_redelivered(history),
    ]


def lost(history: History, subscriptions: Iterable[tuple[str, str]]) -> list[str]:
    """I1, I2: every acknowledged message has reached every subscription.

    Where in the log the lost ones lie tells a torn tail from a lost block.
    """
    seen: dict[tuple[str, str], set[tuple[int, str]]] = defaultdict(set)
    for each in history.deliveries:
        seen[each.topic, each.subscription].add((each.offset, each.value))
    found = []
    for topic, subscription in subscriptions:
        acknowledged = sorted(_acknowledged(history, topic))
        missing = [each for each in acknowledged if each not in seen[topic, subscription]]
        if missing:
            places = _places(acknowledged, missing)
            found.append(
                f"lost: {len(missing)} of {len(acknowledged)} acknowledged messages of {topic} "
                f"never reached {subscription} ({places}): {_some(missing)}"
            )
    return found


def two_values(history: History) -> list[str]:
    """I3: an offset has one value, for whoever was told it and whenever."""
    values: dict[tuple[str, int], set[str]] = defaultdict(set)
    for send in history.sends:
        if send.offset is not None:
            values[send.topic, send.offset].add(send.value)
    for each in history.deliveries:
        values[each.topic, each.offset].add(each.value)
    return [
        f"two values: offset {offset} of {topic} holds {_some(sorted(held))}"
        for (topic, offset), held in sorted(values.items())
        if len(held) > 1
    ]


def repeated_values(history: History) -> list[str]:
    """I4: what was sent once lies at one offset."""
    offsets: dict[tuple[str, str], set[int]] = defaultdict(set)
    for each in history.deliveries:
        offsets[each.topic, each.value].add(each.offset)
    return [
        f"repeated: {value} lies at offsets {_some(sorted(held))} of {topic}"
        for (topic, value), held in sorted(offsets.items())
        if len(held) > 1
    ]


def unsent_values(history: History) -> list[str]:
    """I5: nothing is delivered that was never sent, or whose send failed for certain."""
    sent = {(each.topic, each.value): each for each in history.sends}
    found = []
    for each in history.deliveries:
        send = sent.get((each.topic, each.value))
        if send is None or send.outcome is Outcome.FAILED:
            what = "was never sent" if send is None else "failed for certain"
            found.append(f"unsent: {each.value} at {each.topic}/{each.offset} {what}")
    return found


def send_order(history: History) -> list[str]:
    """I8 and real time: an offset exceeds all that were acknowledged before its send began."""
    found = []
    for topic in sorted({send.topic for send in history.sends}):
        done = [send for send in history.sends if send.topic == topic and send.offset is not None]
        ends = sorted(done, key=lambda send: send.ended or 0)
        highest, at = -1, 0
        for send in sorted(done, key=lambda send: send.started):
            while at < len(ends) and (ends[at].ended or 0) < send.started:
                highest = max(highest, ends[at].offset or 0)
                at += 1
            assert send.offset is not None
            if send.offset <= highest:
                found.append(
                    f"send order: {send.value} got offset {send.offset} of {topic} after "
                    f"{highest} had been acknowledged"
                )
    return found


def delivery_order(history: History) -> list[str]:
    """I7: on one stream, messages that come for the first time come in offset order."""
    last: dict[int, int] = {}
    found = []
    for each in history.deliveries:
        if each.attempt > 1:
            continue
        if each.offset <= last.get(each.stream, -1):
            found.append(
                f"order: {each.topic}/{each.subscription} got {each.offset} after "
                f"{last[each.stream]} on stream {each.stream}"
            )
        last[each.stream] = max(each.offset, last.get(each.stream, -1))
    return found


def key_order(history: History, subscriptions: Iterable[tuple[str, str]]) -> list[str]:
    """I11: a key's message comes only after the one before it has been acked by somebody."""
    found = []
    for topic, subscription in subscriptions:
        acks_began: dict[int, int] = {}
        for ack in _of(history.acks, topic, subscription):
            acks_began.setdefault(ack.offset, ack.started)
        seen: dict[str, dict[int, int]] = defaultdict(dict)
        for each in _of(history.deliveries, topic, subscription):
            assert each.key is not None
            earlier = seen[each.key]
            for offset, first_at in earlier.items():
                settled = acks_began.get(offset, each.at + 1) < each.at
                if offset < each.offset and not settled:
                    found.append(
                        f"key order: {topic}/{subscription} got {each.offset} of key {each.key} "
                        f"while {offset}, seen at {first_at}, was not acked"
                    )
                if offset > each.offset and each.offset not in earlier:
                    found.append(
                        f"key order: {topic}/{subscription} got {each.offset} of key {each.key} "
                        f"for the first time after {offset}"
                    )
            earlier.setdefault(each.offset, each.at)
    return found


def acked_and_redelivered(history: History) -> list[str]:
    """I14: a stream that opens after an ack was answered never brings that message again."""
    answered: dict[tuple[str, str, int], int] = {}
    for ack in history.acks:
        if ack.outcome is Outcome.OK and ack.ended is not None:
            place = (ack.topic, ack.subscription, ack.offset)
            answered[place] = min(ack.ended, answered.get(place, ack.ended))
    found = []
    for each in history.deliveries:
        ended = answered.get((each.topic, each.subscription, each.offset))
        if ended is not None and ended < each.stream_opened:
            found.append(
                f"redelivered: {each.topic}/{each.subscription} got {each.offset} again, "
                f"whose ack had been answered before the stream was opened"
            )
    return found


def _acknowledged(history: History, topic: str) -> Iterator[tuple[int, str]]:
    for send in history.sends:
        if send.topic == topic and send.outcome is Outcome.OK:
            assert send.offset is not None, "an acknowledged send knows its offset"
            yield send.offset, send.value


def _of(events: list[Ack] | list[Delivery], topic: str, subscription: str) -> Iterator[Any]:
    for each in events:
        if each.topic == topic and each.subscription == subscription:
            yield each


def _places(acknowledged: list[tuple[int, str]], missing: list[tuple[int, str]]) -> str:
    gone = set(missing)
    if len(gone) == len(acknowledged):
        return "everything"
    kinds = []
    if acknowledged[0] in gone:
        kinds.append("a prefix")
    if acknowledged[-1] in gone:
        kinds.append("a postfix")
    inner = [each in gone for each in acknowledged]
    while inner and inner[0]:
        inner.pop(0)
    while inner and inner[-1]:
        inner.pop()
    if any(inner):
        kinds.append("the middle")
    return " and ".join(kinds)


def _some(items: list[Any]) -> str:
    shown = ", ".join(str(each) for each in items[:REPORTED_MAX])
    return shown if len(items) <= REPORTED_MAX else f"{shown} and {len(items) - REPORTED_MAX} more"
