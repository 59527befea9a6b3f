from pydanube.topics.limits import RateLimit


def test_a_second_worth_of_messages_passes_at_once() -> None:
    rate = RateLimit(10)
    assert [rate.reserve(0) for _ in range(10)] == [0] * 10


def test_what_exceeds_the_rate_waits_its_turn() -> None:
    rate = RateLimit(10)
    delays = [rate.reserve(0) for _ in range(13)]
    assert delays[10:] == [100, 200, 300]


def test_turns_never_go_backwards() -> None:
    rate = RateLimit(3)
    turns = [now + rate.reserve(now) for now in (0, 0, 0, 0, 5, 6, 1000, 1001, 1002, 5000, 5000)]
    assert turns == sorted(turns)


def test_an_idle_topic_saves_no_more_than_one_second() -> None:
    rate = RateLimit(10)
    rate.reserve(0)
    delays = [rate.reserve(60_000) for _ in range(11)]
    assert delays == [0] * 10 + [100]
