from pydanube.dispatch.in_flight import InFlight
from pydanube.dispatch.redelivery import NEVER
from pydanube.model.ids import ConsumerId

ONE, TWO = ConsumerId(1), ConsumerId(2)


def test_parts_of_a_delivery_can_be_taken() -> None:
    out = InFlight()
    out.add(0, 10, ONE, 1, now_ms=5)
    assert out.take(3, 5) == [(3, 5, 1)]
    assert out.take(0, 100) == [(0, 3, 1), (5, 10, 1)]
    assert out.count == 0
    assert out.oldest_ms == NEVER


def test_a_consumer_gives_back_only_its_own() -> None:
    out = InFlight()
    out.add(0, 2, ONE, 1, 0)
    out.add(2, 4, TWO, 1, 0)
    out.add(4, 6, ONE, 3, 0)
    assert out.take_from(ONE) == [(0, 2, 1), (4, 6, 3)]
    assert out.count == 2


def test_it_knows_with_whom_a_message_is() -> None:
    out = InFlight()
    out.add(0, 4, ONE, 1, 0)
    out.add(6, 8, TWO, 1, 0)
    out.take(1, 2)
    holders = [out.holder(offset) for offset in range(9)]
    assert holders == [ONE, None, ONE, ONE, None, None, TWO, TWO, None]


def test_age_counts_from_the_latest_delivery() -> None:
    out = InFlight()
    out.add(0, 4, ONE, 1, now_ms=10)
    out.take(1, 2)
    out.add(1, 2, TWO, 2, now_ms=20)
    assert out.oldest_ms == 10
    assert out.take_delivered_before(10) == [(0, 1, 1), (2, 4, 1)]
    assert out.oldest_ms == 20
    assert out.take_delivered_before(20) == [(1, 2, 2)]


def test_one_that_stays_out_does_not_make_the_others_pile_up() -> None:
    out = InFlight()
    out.add(0, 1, ONE, 1, 0)
    for offset in range(1, 10_000):
        out.add(offset, offset + 1, ONE, 1, offset)
        out.take(offset, offset + 1)
    assert len(out._by_age) < 100
    assert out.oldest_ms == 0


def test_an_attempt_that_does_not_count_is_out_all_the_same() -> None:
    out = InFlight()
    out.add(0, 10, ONE, 3, 0)
    out.add(10, 20, TWO, 1, 0)
    out.discount(ONE, 5, 15, 1)
    assert out.count == 20
    assert out.take_from(ONE) == [(0, 5, 3), (5, 10, 2)]
    assert out.take_from(TWO) == [(10, 15, 1), (15, 20, 1)]
    assert (out.count, out.oldest_ms) == (0, NEVER)
