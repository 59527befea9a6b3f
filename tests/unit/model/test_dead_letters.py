"""What a dead letter says of its origin, and what is left of that when it goes back."""

from pydanube.model.dead_letters import requeued_attributes
from pydanube.model.ids import Offset
from pydanube.model.message import Message
from pydanube.subscriptions.dead_letter import DeadLetterOrigin, dead_letter

ORIGIN = DeadLetterOrigin(
    topic="/default/orders",
    subscription="billing",
    offset=Offset(7),
    producer_id=5,
    broker_url="http://broker",
    attempts=6,
    reason="not an Order",
)


def died(attributes: dict[str, str] | None) -> dict[str, str]:
    message = Message(payload=b"x", publish_time_ms=3, producer_name="p", attributes=attributes)
    return dict(dead_letter(message, ORIGIN).attributes or {})


def test_a_dead_letter_that_goes_back_has_its_own_attributes_and_how_it_got_there() -> None:
    back = requeued_attributes(died({"unit": "box"}), "/default/orders-dlq@2", 3)
    assert back == {
        "unit": "box",
        "x-requeued-from": "/default/orders-dlq@2",
        "x-requeue-count": "1",
        "x-original-publish-time": "3",
    }
    assert requeued_attributes(died(None), "d@1", 3).keys() == back.keys() - {"unit"}


def test_it_is_counted_how_often_it_went_back_and_its_first_time_is_kept() -> None:
    back = requeued_attributes(died({}), "d@1", 3)
    again = requeued_attributes(died(back), "d@9", 8)
    assert (again["x-requeue-count"], again["x-requeued-from"]) == ("2", "d@9")
    assert again["x-original-publish-time"] == "3"
    strange = requeued_attributes({"x-requeue-count": "many"}, "d@1", 3)
    assert strange["x-requeue-count"] == "1"


def test_it_waits_for_nothing_and_its_time_to_live_counts_anew() -> None:
    timed = {"x-deliver-at": "99", "x-deliver-after": "5", "x-ttl-ms": "1000"}
    back = requeued_attributes(died(timed), "d@1", 3)
    assert {name for name in back if name in timed or "deliver" in name} == {"x-ttl-ms"}
    assert (back["x-ttl-ms"], "x-original-ttl-ms" in back) == ("1000", False)
