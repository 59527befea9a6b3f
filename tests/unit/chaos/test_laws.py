"""Every law of a chaos run speaks when it is broken, and is silent when it is kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.chaos.eras import DELETE_TOPIC, UNSUBSCRIBE
from tests.chaos.history import Ack, Deed, Delivery, History, Record, Send
from tests.chaos.laws import Evidence, find_violations, longest_pauses, unsettled
from tests.chaos.schedule import SubscriptionPlan

T = "/default/t"
KEYED = SubscriptionPlan("keyed", "KeyShared", ("first",))


@dataclass
class Story:
    """Ten messages that were sent, stored, delivered and acked, a second each."""

    records: list[Record] = field(default_factory=list)
    log: dict[int, str] = field(default_factory=dict)
    plans: Sequence[SubscriptionPlan] = (KEYED,)
    ended: float = 20.0

    def message(
        self, offset: int, at: float, value: str = "", *, session: float = 0.0, acked: bool = True
    ) -> None:
        value = value or f"m{offset}"
        self.log[offset] = value
        self.records.append(send(value, at, offset=offset))
        self.records.append(delivery(offset, value, at + 0.2, session=session))
        if acked:
            self.records.append(ack(offset, value, at + 0.3))

    def laws(self) -> list[str]:
        return [violation.law for violation in find_violations(self.evidence())]

    def evidence(self) -> Evidence:
        history = History()
        for record in self.records:
            history.add(record)
        history.sort()
        return Evidence(history, {T: self.log}, [T], self.plans, 0.0, self.ended, 30.0)


def send(value: str, at: float, *, offset: int | None = None, outcome: str = "ok") -> Send:
    return Send(at, at + 0.1, outcome, T, "p", value, "k", offset)


def delivery(
    offset: int, value: str, at: float, *, session: float = 0.0, key: str = "k"
) -> Delivery:
    return Delivery(at, T, "keyed", "c", session, offset, value, key)


def ack(offset: int, value: str, at: float, *, late: bool = False) -> Ack:
    return Ack(at, at + 0.05, "ok", T, "keyed", "c", offset, value, late)


@pytest.fixture
def story() -> Story:
    story = Story()
    for offset in range(10):
        story.message(offset, 1.0 + offset)
    return story


def recreated(story: Story) -> Story:
    """Delete the topic, and fill it again with other messages at the same offsets."""
    story.records.append(Deed(12.0, 12.5, "ok", DELETE_TOPIC, T))
    story.log.clear()
    for offset in range(3):
        story.message(offset, 13.0 + offset, f"n{offset}", session=12.8)
    return story


def test_a_run_in_which_all_is_well_breaks_no_law(story: Story) -> None:
    assert story.laws() == []


def test_what_is_unknown_may_be_there_or_not(story: Story) -> None:
    story.records.append(send("x", 11.0, outcome="unknown"))
    assert story.laws() == []
    story.message(10, 11.5)
    story.records += [send("y", 12.0, outcome="unknown"), delivery(11, "y", 12.3)]
    story.log[11] = "y"
    assert story.laws() == []


@pytest.mark.parametrize(
    ("gone", "where"),
    [((0, 1), "a prefix"), ((4, 5), "one block in the middle"), ((8, 9), "a postfix")],
)
def test_a_lost_message_is_told_with_its_place(
    story: Story, gone: tuple[int, int], where: str
) -> None:
    for offset in gone:
        del story.log[offset]
    [violation] = [each for each in find_violations(story.evidence()) if each.law == "lost"]
    assert where in violation.text
    assert "2 of 10" in violation.text


def test_a_message_without_an_offset_is_looked_for_by_its_value(story: Story) -> None:
    story.records.append(send("stock", 11.0))
    assert story.laws() == ["lost"]
    story.log[10] = "stock"
    story.records.append(delivery(10, "stock", 11.5))
    assert story.laws() == []


def test_another_value_at_the_offset_of_an_answer_is_two_values(story: Story) -> None:
    story.log[9] = "m8"
    story.log[8] = "m9"
    assert {"lost", "two values"} <= set(story.laws())


def test_a_delivery_with_another_value_is_two_values(story: Story) -> None:
    story.records.append(delivery(3, "m4", 11.0))
    assert "two values" in story.laws()


def test_a_hole_is_a_gap(story: Story) -> None:
    del story.log[5]
    assert "gap" in story.laws()


def test_a_topic_may_begin_where_an_earlier_one_of_its_name_ended(story: Story) -> None:
    story.records.append(Deed(12.0, 12.5, "ok", DELETE_TOPIC, T))
    story.log.clear()
    story.message(10, 13.0, "n0", session=12.8)
    assert story.laws() == []


def test_a_numbered_message_at_two_offsets_is_stored_twice(story: Story) -> None:
    story.log[10] = "m2"
    assert "stored twice" in story.laws()


def test_a_message_that_nobody_numbers_may_be_stored_again(story: Story) -> None:
    once = send("again", 11.0)
    once.numbered = False
    story.records += [once, delivery(10, "again", 11.5)]
    story.log |= {10: "again", 11: "again"}
    assert story.laws() == []


@pytest.mark.parametrize("outcome", ["failed", None])
def test_what_was_refused_or_never_sent_must_not_appear(story: Story, outcome: str | None) -> None:
    if outcome is not None:
        story.records.append(send("ghost", 11.0, outcome=outcome))
    story.log[10] = "ghost"
    story.records.append(delivery(10, "ghost", 11.5))
    assert set(story.laws()) == {"never sent"}


def test_a_message_before_one_that_was_acknowledged_earlier_is_out_of_order(story: Story) -> None:
    story.records += [send("late", 11.0), delivery(10, "late", 11.5), send("later", 12.0)]
    story.records.append(delivery(11, "later", 12.5))
    story.log |= {10: "later", 11: "late"}
    assert "nonmonotonic send" in story.laws()


def test_what_no_consumer_got_is_unseen(story: Story) -> None:
    story.records.append(send("m10", 11.0, offset=10))
    story.log[10] = "m10"
    assert story.laws() == ["unseen"]


def test_a_key_whose_messages_come_in_another_order_is_noticed(story: Story) -> None:
    story.records += [send("m10", 11.0, offset=10), send("m11", 11.2, offset=11)]
    story.records += [delivery(11, "m11", 12.0), delivery(10, "m10", 12.1)]
    story.log |= {10: "m10", 11: "m11"}
    assert story.laws() == ["out of order"]


def test_messages_of_other_keys_may_overtake(story: Story) -> None:
    story.records += [send("m10", 11.0, offset=10), send("m11", 11.2, offset=11)]
    story.records += [delivery(11, "m11", 12.0, key="other"), delivery(10, "m10", 12.1)]
    story.log |= {10: "m10", 11: "m11"}
    assert story.laws() == []


def test_a_redelivery_is_no_disorder(story: Story) -> None:
    story.message(10, 11.0, acked=False)
    story.message(11, 11.5, acked=False)
    story.records += [delivery(10, "m10", 13.0, session=12.5), delivery(11, "m11", 13.1)]
    assert story.laws() == []


@pytest.mark.parametrize(("session", "at"), [(5.0, 5.5), (0.0, 90.0)])
def test_an_acked_message_that_comes_again_is_noticed(
    story: Story, session: float, at: float
) -> None:
    story.records.append(delivery(2, "m2", at, session=session))
    assert story.laws() == ["acked and repeated"]


def test_a_message_on_its_way_when_it_was_acked_may_come_twice(story: Story) -> None:
    story.records.append(delivery(2, "m2", 4.0, session=3.1))
    assert story.laws() == []


def test_what_waits_for_a_consumer_or_its_ack_is_unsettled(story: Story) -> None:
    def waiting() -> set[str]:
        return unsettled(story.evidence().history, T, "keyed", story.log)

    assert waiting() == set()
    story.message(10, 12.0, acked=False)
    assert waiting() == {"m10"}
    unanswered = ack(10, "m10", 12.5)
    unanswered.outcome = "unknown"
    story.records.append(unanswered)
    assert waiting() == set(), "it may be settled, and then nothing more comes"
    story.records.append(delivery(10, "m10", 14.0))
    assert waiting() == {"m10"}, "it was not"
    story.records.append(ack(10, "m10", 14.5))
    assert waiting() == set()


# Topics and subscriptions that are replaced.


def test_a_topic_that_was_made_again_owes_nothing_of_before(story: Story) -> None:
    assert recreated(story).laws() == []


def test_what_was_sent_while_a_topic_was_deleted_may_be_in_either(story: Story) -> None:
    recreated(story).records.append(send("between", 12.2, offset=3))
    assert story.laws() == []
    story.log[3] = "between"
    story.records.append(delivery(3, "between", 14.5))
    assert story.laws() == []


def test_an_old_ack_that_settles_a_new_message_is_told_as_such(story: Story) -> None:
    recreated(story).records.append(ack(1, "m1", 14.0, late=True))
    assert story.laws() == []
    story.records = [
        each for each in story.records if not isinstance(each, Delivery | Ack) or each.value != "n1"
    ]
    assert story.laws() == ["stale ack"]


def test_a_message_of_a_deleted_topic_stays_away(story: Story) -> None:
    recreated(story).records.append(delivery(4, "m4", 16.0, session=15.5))
    assert "back from the dead" in story.laws()


def test_a_log_that_holds_deleted_messages_is_noticed(story: Story) -> None:
    recreated(story).log[3] = "m3"
    assert "back from the dead" in story.laws()


def test_a_subscription_that_was_made_again_owes_everything_anew(story: Story) -> None:
    story.records.append(Deed(12.0, 12.5, "ok", UNSUBSCRIBE, f"{T} keyed"))
    assert story.laws() == ["unseen"]
    for offset in range(10):
        story.records.append(delivery(offset, f"m{offset}", 13.0 + offset / 10, session=12.8))
    assert story.laws() == []
    del story.records[-4]
    story.records.append(ack(6, "m6", 12.9, late=True))
    assert story.laws() == ["stale ack"]


# Time.


def test_a_pause_that_a_fault_explains_is_none(story: Story) -> None:
    story.ended = 60.0
    assert story.laws() == ["long pause"]
    story.records.append(Deed(15.0, 40.0, "ok", "pause", "broker 0,1"))
    assert story.laws() == []
    [pause] = longest_pauses(story.evidence())
    assert pause.harmed == pytest.approx(25.0)
    assert pause.excess == pytest.approx(60.0 - 10.1 - 25.0)


def test_a_fault_on_one_broker_explains_the_time_until_others_serve(story: Story) -> None:
    story.ended = 60.0
    story.records.append(Deed(15.0, 40.0, "ok", "EIO", "broker 1"))
    [pause] = longest_pauses(story.evidence())
    assert pause.harmed == pytest.approx(10.0)
    assert story.laws() == ["long pause"]


def test_topics_that_cannot_move_wait_for_their_broker(story: Story) -> None:
    story.ended = 60.0
    story.records.append(Deed(15.0, 40.0, "ok", "pause", "broker 1"))
    assert find_violations(replace(story.evidence(), moves=False)) == []


def test_what_is_done_to_other_topics_explains_nothing(story: Story) -> None:
    story.ended = 60.0
    story.records.append(Deed(12.0, 50.0, "ok", "recreate", "/default/other"))
    assert story.laws() == ["long pause"]


def test_the_end_of_a_fault_is_no_explanation(story: Story) -> None:
    story.ended = 60.0
    story.records.append(Deed(12.0, 16.0, "ok", "EIO", "broker 1"))
    assert story.laws() == ["long pause"]


@pytest.mark.parametrize(("kind", "law"), [("helped", "stuck"), ("broken", "broken")])
def test_what_did_not_recover_by_itself_is_told(story: Story, kind: str, law: str) -> None:
    story.records.append(Deed(9.0, 9.0, "ok", kind, "broker 1", "not ready"))
    assert story.laws() == [law]


def test_a_topic_that_cannot_be_read_is_told(story: Story) -> None:
    evidence = story.evidence()
    evidence = replace(evidence, logs={})
    assert [each.law for each in find_violations(evidence)] == ["unreadable"]
