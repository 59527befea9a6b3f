from pydanube.model.ids import Offset
from pydanube.subscriptions.long_messages import REFUSED_WITHIN_MS, LongMessages


def test_a_stream_without_long_messages_refuses_nothing() -> None:
    assert LongMessages().recent(0) == []


def test_long_messages_come_in_the_order_they_were_sent() -> None:
    long = LongMessages()
    long.begin([Offset(3)])
    assert long.recent(0) == [3], "its client may not read it to the end"
    long.sent(10)
    long.begin([Offset(7), Offset(9)])
    assert long.recent(10) == [3, 7, 9]
    long.sent(20)
    assert long.recent(20) == [3, 7, 9]


def test_a_message_that_was_sent_long_ago_was_taken() -> None:
    long = LongMessages()
    long.begin([Offset(3)])
    long.sent(10)
    assert long.recent(10 + REFUSED_WITHIN_MS) == [3]
    assert long.recent(11 + REFUSED_WITHIN_MS) == []
    long.begin([Offset(4)])
    assert long.recent(1_000_000) == [4], "a slow client has not had it yet"
