"""Every law finds the violation it is for, and nothing in a history that has none."""

from dataclasses import dataclass, field

import pytest

from tests.support.checkers import (
    Evidence,
    WatchedSubscription,
    describe_loss,
    find_violations,
)
from tests.support.history import (
    Ack,
    Delivery,
    History,
    Nack,
    Outcome,
    Registered,
    Send,
    Stream,
)

TOPIC, NEWS, DEAD, NAME = "/default/t", "/default/news", "/default/dead", "s"


@dataclass
class Story:
    """Tells a history step by step, and asks for the laws it breaks."""

    kind: str = "Exclusive"
    in_order: bool = True
    redeliveries_max: int | None = None
    history: History = field(default_factory=History)
    log: dict[int, str] = field(default_factory=dict)
    letters: list[Delivery] = field(default_factory=list)

    def send(self, offset: int | None, value: str = "", outcome: Outcome = "ok") -> None:
        at = self.history.now()
        value = value or f"v{offset}"
        sent = Send(at, "client", TOPIC, "p", value, None, self.history.now(), outcome, offset)
        self.history.sends.append(sent)
        if outcome == "ok" and offset is not None:
            self.log[offset] = value

    def stream(self, consumer: str = "c") -> Stream:
        number = len(self.history.streams) + 1
        stream = Stream(number, "client", consumer, self.history.now(), self.history.boot)
        self.history.streams.append(stream)
        return stream

    def deliver(
        self,
        stream: Stream,
        offset: int,
        *,
        value: str = "",
        attempt: int = 1,
        key: str | None = None,
        topic: str = TOPIC,
    ) -> Delivery:
        value = value or self.log.get(offset, f"v{offset}")
        delivery = Delivery(
            self.history.now(), stream, topic, NAME, offset, value, key, "p", attempt, {}
        )
        self.history.deliveries.append(delivery)
        return delivery

    def ack(self, offset: int, outcome: Outcome = "ok") -> None:
        at = self.history.now()
        ended = self.history.now()
        self.history.acks.append(Ack(at, "client", TOPIC, NAME, offset, ended, outcome))

    def nack(self, offset: int, attempt: int) -> None:
        at = self.history.now()
        nack = Nack(at, "client", TOPIC, NAME, offset, attempt, 0, self.history.now(), "ok", 0)
        self.history.nacks.append(nack)

    def broken(self, *, calm: bool = False) -> set[str]:
        watched = WatchedSubscription(
            TOPIC,
            NAME,
            self.kind,
            in_order=self.in_order,
            redeliveries_max=self.redeliveries_max,
            dead_letters=DEAD if self.redeliveries_max is not None else None,
        )
        evidence = Evidence(
            self.history,
            logs={TOPIC: self.log},
            dead_letters={DEAD: self.letters},
            subscriptions=[watched],
            best_effort=[(NEWS, NAME)],
            calm=calm,
        )
        return {violation.law for violation in find_violations(evidence)}


def sound_story(kind: str = "Exclusive") -> Story:
    """Three messages, one of unknown fate, two streams, one redelivery."""
    story = Story(kind)
    for offset in range(3):
        story.send(offset)
    story.send(None, "lost reply", "info")
    first = story.stream()
    story.deliver(first, 0, key="k")
    story.ack(0)
    story.deliver(first, 1, key="k")
    second = story.stream()
    story.deliver(second, 1, attempt=2, key="k")
    story.ack(1)
    story.deliver(second, 2, key="k")
    story.ack(2)
    return story


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "KeyShared"])
def test_a_sound_history_breaks_no_law(kind: str) -> None:
    assert sound_story(kind).broken() == set()


@pytest.mark.parametrize(
    ("lost", "where"),
    [
        ([0, 1], "a prefix"),
        ([1, 2], "one block in the middle"),
        ([1, 3], "scattered in the middle"),
        ([3, 4], "a postfix"),
        ([0, 1, 2, 3, 4], "all of them"),
    ],
)
def test_where_a_loss_lies_tells_what_it_is(lost: list[int], where: str) -> None:
    assert describe_loss(lost, [0, 1, 2, 3, 4]) == where


def test_an_acknowledged_message_that_is_not_in_the_log_is_lost() -> None:
    story = sound_story()
    del story.log[2]
    assert "lost write" in story.broken()


def test_an_offset_without_a_message_is_a_gap() -> None:
    story = sound_story()
    story.send(4)
    assert "gap" in story.broken()


def test_an_offset_with_two_values_is_found() -> None:
    story = sound_story()
    story.deliver(story.stream(), 1, value="lost reply", attempt=3)
    assert "inconsistent offset" in story.broken()


def test_a_value_at_two_offsets_is_found() -> None:
    story = sound_story()
    story.log[3] = "lost reply"
    assert "stored twice" not in story.broken()
    story.log[4] = "lost reply"
    assert "stored twice" in story.broken()


@pytest.mark.parametrize("outcome", ["fail", None])
def test_a_value_that_was_refused_or_never_sent_is_not_to_be_seen(outcome: Outcome | None) -> None:
    story = sound_story()
    if outcome is not None:
        story.send(None, "nobody's", outcome)
    story.log[3] = "nobody's"
    assert "aborted read" in story.broken()


def test_an_offset_below_one_that_was_acknowledged_earlier_is_found() -> None:
    story = Story()
    story.send(1)
    story.send(0)
    assert "nonmonotonic send" in story.broken()


def test_a_message_nobody_got_is_unseen_and_one_nobody_settled_starves() -> None:
    story = sound_story()
    story.send(3)
    assert {"unseen", "starvation"} <= story.broken()
    story.deliver(story.stream(), 3)
    assert story.broken() == {"starvation"}
    story.ack(3, "info")
    assert story.broken() == {"starvation"}, "an ack of unknown fate settles nothing"
    story.ack(3)
    assert story.broken() == set()


def test_an_answered_ack_is_final_for_later_streams() -> None:
    story = sound_story()
    story.deliver(story.stream(), 0, attempt=2)
    assert "acked and redelivered" in story.broken()


def test_a_message_out_of_order_and_a_skipped_one_are_found() -> None:
    story = Story()
    for offset in range(3):
        story.send(offset)
    stream = story.stream()
    story.deliver(stream, 0)
    story.deliver(stream, 2)
    assert "poll skip" in story.broken()
    story.deliver(stream, 1)
    assert "nonmonotonic poll" in story.broken()


def test_where_messages_are_nacked_order_may_be_disturbed() -> None:
    story = Story(in_order=False)
    for offset in range(2):
        story.send(offset)
    stream = story.stream()
    for offset in (1, 0):
        story.deliver(stream, offset)
        story.ack(offset)
    assert story.broken() == set()


def test_a_key_that_runs_ahead_of_its_acks_is_found() -> None:
    story = Story("KeyShared")
    for offset in range(2):
        story.send(offset)
    stream = story.stream()
    for offset in (0, 1):
        story.deliver(stream, offset, key="k")
    for offset in (0, 1):
        story.ack(offset)
    assert story.broken() == {"key order"}


def test_a_nack_that_was_answered_counts() -> None:
    story = Story(in_order=False)
    story.send(0)
    story.deliver(story.stream(), 0)
    story.nack(0, attempt=1)
    story.deliver(story.stream(), 0, attempt=1)
    story.ack(0)
    assert story.broken() == {"forgotten attempt"}


def test_attempts_grow_on_a_stream() -> None:
    story = Story(in_order=False)
    story.send(0)
    stream = story.stream()
    for attempt in (1, 2, 2):
        story.deliver(stream, 0, attempt=attempt)
    story.ack(0)
    assert story.broken() == {"repeated attempt"}


def test_in_a_calm_world_a_second_delivery_is_one_too_many() -> None:
    assert sound_story().broken(calm=True) == {"repeated delivery"}


def test_an_early_or_empty_dead_letter_is_found() -> None:
    story = Story(in_order=False, redeliveries_max=3)
    story.send(0)
    story.deliver(story.stream(), 0)
    letter = story.deliver(story.stream("audit"), 0, topic=DEAD, value="v0")
    origin = {
        "x-original-topic": TOPIC,
        "x-original-subscription": NAME,
        "x-original-topic-offset": "0",
        "x-original-producer-id": "7",
        "x-failure-reason": "told to",
        "x-poison-policy": "dead_letter",
    }
    told = {**origin, "x-delivery-attempt": "4"}
    for attributes, laws in (
        (told, set()),
        ({**told, "x-delivery-attempt": "2"}, {"early dead letter"}),
        ({**told, "x-poison-policy": "drop"}, {"dead letter"}),
        ({name: told[name] for name in told if name != "x-failure-reason"}, {"dead letter"}),
    ):
        story.letters = [
            Delivery(letter.at, letter.stream, DEAD, NAME, 0, "v0", None, "p", 1, attributes)
        ]
        assert story.broken() == laws


def test_an_id_that_changes_is_found() -> None:
    story = sound_story()
    for number in (1, 1, 2):
        story.history.registered.append(Registered(story.history.now(), "consumer", "c", number))
    assert story.broken() == {"unstable id"}


def test_a_best_effort_message_that_comes_twice_is_found() -> None:
    story = sound_story()
    at = story.history.now()
    story.history.sends.append(Send(at, "client", NEWS, "p", "n", None, at, "ok"))
    stream = story.stream()
    for _ in range(2):
        story.deliver(stream, 0, value="n", topic=NEWS)
    assert story.broken() == {"repeated best effort"}
