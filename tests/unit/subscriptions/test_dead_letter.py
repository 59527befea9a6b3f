from pydanube.model.ids import Offset
from pydanube.model.message import Message
from pydanube.subscriptions.dead_letter import DeadLetterOrigin, dead_letter

ORIGIN = DeadLetterOrigin(
    topic="/default/orders",
    subscription="billing",
    offset=Offset(7),
    producer_id=5,
    broker_url="http://b:1",
    attempts=3,
    reason="no",
)


def test_a_dead_letter_neither_waits_nor_expires() -> None:
    original = Message(
        payload=b"x",
        publish_time_ms=9,
        producer_name="p",
        attributes={"x-ttl-ms": "5", "x-deliver-at": "1", "x-deliver-after": "2", "colour": "red"},
        wire=b"as it came",
    )
    letter = dead_letter(original, ORIGIN)
    assert letter.attributes is not None
    timing = {name: value for name, value in letter.attributes.items() if "ttl" in name}
    assert timing == {"x-original-ttl-ms": "5"}
    assert letter.attributes["x-original-deliver-at"] == "1"
    assert letter.attributes["x-original-deliver-after"] == "2"
    assert "x-deliver-at" not in letter.attributes
    assert "x-deliver-after" not in letter.attributes
    assert letter.attributes["colour"] == "red"
    assert letter.attributes["x-original-topic"] == "/default/orders"
    assert (letter.payload, letter.publish_time_ms, letter.wire) == (b"x", 9, None)
