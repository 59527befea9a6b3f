"""Every law speaks up for the history that breaks it, and is silent about a sane one."""

import pytest

from tests.support.checkers import (
    Evidence,
    WatchedSubscription,
    describe_loss,
    find_violations,
)
from tests.support.history import Ack, Delivery, History, Nack, Registered, Send, Stream

TOPIC, READERS, DEAD = "/default/t", "readers", "/default/dead"


class Story:
    """A history told step by step; `judge` reads the topic once more and asks for violations."""

    def __init__(self, kind: str = "Exclusive", **expected: object) -> None:
        self.history = History(boot=1)
        self.evidence = Evidence(self.history, calm=False)
        self.watched = WatchedSubscription(TOPIC, READERS, kind, **expected)  # type: ignore[arg-type]
        self.log: dict[int, str] = {}

    def stored(self, *values: str) -> "Story":
        for value in values:
            self.send(value, len(self.log))
            self.log[len(self.log)] = value
        return self

    def send(self, value: str, offset: int | None, outcome: str = "ok") -> Send:
        now = self.history.now
        send = Send(now(), "c", TOPIC, "p", value, None, now(), outcome, offset)  # type: ignore[arg-type]
        self.history.sends.append(send)
        return send

    def stream(self, consumer: str = "reader") -> Stream:
        number = len(self.history.streams) + 1
        stream = Stream(number, "c", consumer, self.history.now(), self.history.boot)
        self.history.streams.append(stream)
        return stream

    def got(
        self,
        stream: Stream,
        offset: int,
        value: str | None = None,
        *,
        attempt: int = 1,
        key: str | None = None,
    ) -> Delivery:
        delivery = Delivery(
            self.history.now(),
            stream,
            TOPIC,
            READERS,
            offset,
            value or self.log[offset],
            key,
            "p",
            attempt,
            {},
        )
        self.history.deliveries.append(delivery)
        return delivery

    def acked(self, *offsets: int, outcome: str = "ok") -> None:
        now = self.history.now
        for offset in offsets:
            ack = Ack(now(), "c", TOPIC, READERS, offset, now(), outcome)  # type: ignore[arg-type]
            self.history.acks.append(ack)

    def nacked(self, offset: int, attempt: int) -> None:
        now, boot = self.history.now, self.history.boot
        nack = Nack(now(), "c", TOPIC, READERS, offset, attempt, boot, now(), "ok", boot)
        self.history.nacks.append(nack)

    def dead_letter(self, offset: int, attempts: int) -> None:
        attributes = {
            "x-original-topic": TOPIC,
            "x-original-subscription": READERS,
            "x-original-topic-offset": str(offset),
            "x-original-producer-id": "1",
            "x-failure-reason": "told to",
            "x-poison-policy": "dead_letter",
            "x-delivery-attempt": str(attempts),
        }
        letters = self.evidence.dead_letters.setdefault(DEAD, [])
        stream = letters[0].stream if letters else self.stream("auditor")
        letter = Delivery(
            *(self.history.now(), stream, DEAD, "audit", len(letters), self.log[offset], None, "p"),
            *(1, attributes),
        )
        letters.append(letter)
        self.history.deliveries.append(letter)

    def judge(self) -> list[str]:
        self.evidence.logs[TOPIC] = self.log
        self.evidence.subscriptions = [self.watched]
        return sorted({violation.law for violation in find_violations(self.evidence)})


def read_and_acked(story: Story, *values: str) -> Story:
    story.stored(*values)
    stream = story.stream()
    for offset in range(len(values)):
        story.got(stream, offset)
        story.acked(offset)
    return story


def test_a_sane_history_breaks_no_law() -> None:
    story = read_and_acked(Story(in_order=True), "a", "b", "c")
    assert story.judge() == []


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ([1, 2], "a prefix"),
        ([4, 5], "a postfix"),
        ([2, 3], "one block in the middle"),
        ([2, 4], "scattered in the middle"),
        ([1, 2, 3, 4, 5], "all of them"),
    ],
)
def test_a_loss_is_told_by_its_place(lost: list[int], named: str) -> None:
    assert describe_loss(lost, [1, 2, 3, 4, 5]) == named


def test_an_acknowledged_message_that_is_gone_is_a_lost_write() -> None:
    story = read_and_acked(Story(), "a", "b")
    story.send("c", 2)
    assert story.judge() == ["lost write"]


def test_a_message_of_unknown_outcome_may_be_there_or_not() -> None:
    story = read_and_acked(Story(), "a")
    story.send("b", None, "info")
    assert story.judge() == []


def test_an_offset_with_two_values_is_inconsistent() -> None:
    story = read_and_acked(Story(), "a", "b")
    story.got(story.stream(), 1, "a")
    assert "inconsistent offset" in story.judge()


def test_a_numbered_message_is_stored_once() -> None:
    story = Story()
    for offset in range(2):
        story.send("a", offset).numbered = True
    story.log = {0: "a", 1: "a"}
    stream = story.stream()
    for offset in range(2):
        story.got(stream, offset)
        story.acked(offset)
    assert story.judge() == ["stored twice"]
    for send in story.history.sends:
        send.numbered = False
    assert story.judge() == []


def test_a_repeated_numbered_message_is_told_the_offset_it_has() -> None:
    story = read_and_acked(Story(), "a", "b")
    story.history.sends[0].numbered = True
    story.send("a", 0).numbered = True
    assert story.judge() == []


def test_a_session_that_an_answer_made_known_is_not_forgotten() -> None:
    story = read_and_acked(Story(), "a")
    story.send("b", None, "info").continues_nothing = True
    assert story.judge() == []
    story.evidence.remembers_sessions = True
    assert story.judge() == ["forgotten session"]


def test_an_offset_that_holds_nothing_is_a_gap() -> None:
    story = read_and_acked(Story(), "a", "b")
    del story.log[0]
    assert "gap" in story.judge()


def test_what_was_refused_must_not_be_stored() -> None:
    story = Story()
    story.send("a", None, "fail")
    story.log[0] = "a"
    story.got(story.stream(), 0)
    story.acked(0)
    assert story.judge() == ["aborted read"]


def test_an_offset_below_one_that_was_answered_before_is_nonmonotonic() -> None:
    story = Story()
    story.send("b", 1)
    story.send("a", 0)
    story.log = {0: "a", 1: "b"}
    stream = story.stream()
    for offset in (0, 1):
        story.got(stream, offset)
        story.acked(offset)
    assert story.judge() == ["nonmonotonic send"]


def test_sends_that_overlap_may_get_their_offsets_in_any_order() -> None:
    story = read_and_acked(Story(), "a", "b")
    first, second = story.history.sends
    first.offset, second.offset = 1, 0
    first.ended = second.ended
    story.log = {0: "b", 1: "a"}
    for delivery in story.history.deliveries:
        delivery.value = story.log[delivery.offset]
    assert story.judge() == []


def test_a_message_nobody_got_is_unseen_and_unsettled() -> None:
    story = read_and_acked(Story(), "a")
    story.stored("b")
    assert story.judge() == ["starvation", "unseen"]


def test_a_message_nobody_could_settle_is_starved() -> None:
    story = read_and_acked(Story(), "a")
    story.stored("b")
    story.got(story.stream(), 1)
    story.acked(1, outcome="info")
    assert story.judge() == ["starvation"]


def test_a_consumer_that_comes_after_the_ack_must_not_get_the_message() -> None:
    story = read_and_acked(Story(), "a")
    story.got(story.stream(), 0, attempt=2)
    assert story.judge() == ["acked and redelivered"]


def test_a_redelivery_that_was_under_way_when_the_ack_came_is_no_violation() -> None:
    story = Story().stored("a")
    first, second = story.stream(), story.stream()
    story.got(first, 0)
    story.acked(0)
    story.got(second, 0, attempt=2)
    assert story.judge() == []


def test_an_unacked_message_must_not_be_skipped() -> None:
    story = Story(in_order=True).stored("a", "b")
    story.got(story.stream(), 1)
    story.got(story.stream(), 0)
    story.acked(0, 1)
    assert story.judge() == ["poll skip"]


def test_a_stream_never_goes_back() -> None:
    story = Story(in_order=True).stored("a", "b")
    stream = story.stream()
    for offset, attempt in ((0, 1), (1, 1), (0, 2)):
        story.got(stream, offset, attempt=attempt)
    story.acked(0, 1)
    assert story.judge() == ["nonmonotonic poll"]


def test_a_key_waits_for_its_earlier_message() -> None:
    story = Story("KeyShared").stored("a", "b", "c")
    stream = story.stream()
    story.got(stream, 0, key="x")
    story.got(stream, 1, key="y")
    story.acked(1)
    story.got(stream, 2, key="y")
    story.acked(0, 2)
    assert story.judge() == []
    story.history.acks = [ack for ack in story.history.acks if ack.offset != 1]
    story.acked(1)
    assert story.judge() == ["key order"]


def test_a_counted_attempt_is_never_counted_again() -> None:
    story = Story().stored("a")
    story.got(story.stream(), 0, attempt=1)
    story.nacked(0, attempt=1)
    story.history.boot += 1
    story.got(story.stream(), 0, attempt=1)
    story.acked(0)
    assert story.judge() == ["forgotten attempt"]


def test_attempts_grow_on_one_stream() -> None:
    story = Story().stored("a")
    stream = story.stream()
    story.got(stream, 0)
    story.got(stream, 0)
    story.acked(0)
    assert story.judge() == ["repeated attempt"]


def exhausting(attempts: int) -> Story:
    story = Story(redeliveries_max=1, dead_letters=DEAD, poison=lambda value: value == "a")
    story.stored("a")
    stream = story.stream()
    for attempt in range(1, attempts + 1):
        story.got(stream, 0, attempt=attempt)
        story.nacked(0, attempt)
    story.dead_letter(0, attempts)
    return story


def test_a_dead_letter_settles_its_message() -> None:
    assert exhausting(2).judge() == []


def test_a_message_must_fail_as_often_as_allowed_before_it_is_given_up() -> None:
    assert exhausting(1).judge() == ["early dead letter"]


def test_only_a_restart_may_repeat_a_dead_letter() -> None:
    story = exhausting(2)
    story.dead_letter(0, 2)
    assert story.judge() == ["repeated dead letter"]
    story.evidence.restarts = 1
    assert story.judge() == []


def test_a_dead_letter_is_the_message_it_says_it_is() -> None:
    story = exhausting(2)
    story.stored("b")
    story.got(story.stream(), 1)
    story.acked(1)
    story.evidence.dead_letters[DEAD][0].value = "b"
    assert story.judge() == ["dead letter"]


def test_in_a_calm_world_nothing_comes_twice() -> None:
    story = read_and_acked(Story("Shared", in_order=True), "a")
    story.evidence.calm = True
    assert story.judge() == []
    story.history.streams[0].session_at = 10_000
    story.got(story.stream(), 0, attempt=2)
    assert "repeated delivery" in story.judge()


def test_a_name_keeps_its_id() -> None:
    story = read_and_acked(Story(), "a")
    story.history.registered += [
        Registered(1, "producer", "p", 7),
        Registered(2, "consumer", "p", 8),
        Registered(3, "producer", "p", 7),
    ]
    assert story.judge() == []
    story.history.registered.append(Registered(4, "producer", "p", 9))
    assert story.judge() == ["unstable id"]


def best_effort(*values: str) -> Story:
    story = Story()
    story.watched = WatchedSubscription(TOPIC, "nobody", "Shared")
    for value in ("a", "b", "c"):
        story.send(value, None)
    stream = story.stream()
    for value in values:
        story.got(stream, 0, value)
    story.evidence.best_effort = [(TOPIC, READERS)]
    story.evidence.calm = True
    return story


def judge_best_effort(story: Story) -> list[str]:
    story.evidence.logs = {}
    return sorted({violation.law for violation in find_violations(story.evidence)})


def test_best_effort_messages_come_in_order_and_once() -> None:
    assert judge_best_effort(best_effort("a", "b", "c")) == []
    assert judge_best_effort(best_effort("a", "c", "b")) == ["best-effort order"]
    assert judge_best_effort(best_effort("a", "b", "b", "c")) == ["repeated best effort"]
    assert judge_best_effort(best_effort("a", "c")) == ["best effort"]
