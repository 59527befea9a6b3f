from pydanube.wire.http2.deadlines import Deadlines


def test_streams_come_due_in_the_order_of_their_deadlines():
    deadlines = Deadlines({1, 3, 5}.__contains__)
    for stream_id, due_ms in ((1, 30.0), (3, 10.0), (5, 20.0)):
        deadlines.add(stream_id, due_ms)
    assert deadlines.next_ms() == 10.0
    assert list(deadlines.take_due(20)) == [3, 5]
    assert deadlines.next_ms() == 30.0
    assert list(deadlines.take_due(29)) == []


def test_a_stream_that_ended_is_never_due():
    streams = {1, 3}
    deadlines = Deadlines(streams.__contains__)
    deadlines.add(1, 10.0)
    deadlines.add(3, 20.0)
    streams.remove(1)
    assert deadlines.next_ms() == 20.0
    assert list(deadlines.take_due(100)) == [3]
    assert deadlines.next_ms() is None


def test_ended_streams_do_not_pile_up():
    streams = set()
    deadlines = Deadlines(streams.__contains__)
    for stream_id in range(20_000):
        streams.add(stream_id)
        deadlines.add(stream_id, 1e9 - stream_id)
        streams.discard(stream_id - 5)
    assert len(deadlines._due) < 2_000
    assert list(deadlines.take_due(10**9)) == sorted(streams, reverse=True)
