"""What a consumer of batches says to its broker."""

from pydanube.client.batch_consumer import said_together
from pydanube.wire.flight.descriptors import RANGES_MAX, ConsumerSays


def test_acks_and_credit_that_wait_together_are_said_in_one() -> None:
    waiting = [
        ConsumerSays(ack=[(0, 5)], id=1),
        ConsumerSays(credit=5),
        ConsumerSays(ack=[(9, 10)], id=2),
        ConsumerSays(ack=[(5, 7)], id=3),
        ConsumerSays(credit=2),
    ]
    assert list(said_together(waiting)) == [ConsumerSays(credit=7, ack=[(0, 7), (9, 10)], id=3)]


def test_a_nack_is_said_alone_and_in_its_turn() -> None:
    nack = ConsumerSays(nack=[(5, 6)], delay_ms=7, reason="why", id=2)
    before, after = ConsumerSays(ack=[(0, 5)], id=1), ConsumerSays(ack=[(6, 7)], id=3)
    assert list(said_together([before, nack, nack, after])) == [before, nack, nack, after]


def test_no_more_ranges_are_said_at_once_than_a_broker_takes() -> None:
    many = [(2 * number, 2 * number + 1) for number in range(RANGES_MAX)]
    said = list(
        said_together([ConsumerSays(ack=many, id=1), ConsumerSays(ack=[(99_999, 100_000)])])
    )
    assert [len(each.ack) for each in said] == [RANGES_MAX, 1]
    assert said[0].id == 1


def test_acks_of_what_two_subscriptions_of_a_name_delivered_are_said_apart() -> None:
    old = ConsumerSays(ack=[(0, 3)], mark="a", id=1)
    new = ConsumerSays(ack=[(0, 2)], mark="b", id=2)
    credit = ConsumerSays(credit=5)
    assert list(said_together([old, credit, new])) == [
        ConsumerSays(ack=[(0, 3)], mark="a", credit=5, id=1),
        new,
    ]
