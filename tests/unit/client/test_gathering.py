"""Messages that travel together: stored once and in order, each answered by itself."""

import asyncio

import pytest

from pydanube.client.client import Client
from pydanube.client.producer import IN_FLIGHT_MAX
from pydanube.errors import Conflict, InvalidRequest, Overloaded, Unavailable
from tests.support.fake_brokers import FakeBrokers, with_client
from tests.support.fake_puts import POISON, FakePuts

TOPIC = "/default/orders"


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def batches_of(cluster: FakeBrokers) -> FakePuts:
    cluster.puts = FakePuts()
    return cluster.puts


def test_what_is_sent_in_one_turn_is_one_batch_and_each_message_knows_its_offset() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        puts = batches_of(cluster)
        async with client.producer(TOPIC) as producer:
            answers = [producer.send_nowait(payload) for payload in numbers(10)]
            sent = await asyncio.gather(*answers)
            last = await producer.send(b"10")
        assert [each.offset for each in [*sent, last]] == list(range(11))
        assert (puts.payloads, puts.batches, puts.streams) == (numbers(11), [10, 1], 1)
        assert cluster.first.count("SendMessage") == 0

    with_client(test)


@pytest.mark.parametrize("answer_seconds", [0.0, 0.1])
@pytest.mark.parametrize("trouble", ["refuse", "lose"])
def test_whatever_happens_to_answers_everything_is_stored_once_and_in_order(
    trouble: str, answer_seconds: float
) -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        puts = batches_of(cluster)
        puts.answer_seconds = answer_seconds
        async with client.producer(TOPIC) as producer:
            answers = []
            for turn in range(20):
                puts.troubles += [None, trouble] if turn % 3 == 0 else []
                answers += [producer.send_nowait(each) for each in numbers(5, 5 * turn)]
                await asyncio.sleep(0)
            await asyncio.gather(*answers)
        assert puts.payloads == numbers(100)
        assert puts.streams > 1

    with_client(test)


def test_a_message_that_is_refused_takes_no_other_with_it() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        puts = batches_of(cluster)
        async with client.producer(TOPIC) as producer:
            payloads = [b"0", b"1", POISON, b"2", b"3"]
            answers = [producer.send_nowait(payload) for payload in payloads]
            later = asyncio.create_task(producer.send(b"4"))
            outcomes = await asyncio.gather(*answers, return_exceptions=True)
            await later
        assert puts.payloads == numbers(5)
        assert isinstance(outcomes[2], InvalidRequest)
        assert [isinstance(each, Exception) for each in outcomes] == [False] * 2 + [True] + [
            False
        ] * 2

    with_client(test)


def test_what_cannot_be_sent_at_all_takes_no_other_with_it() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        puts = batches_of(cluster)
        async with client.producer(TOPIC) as producer:
            good = producer.send_nowait(b"0")
            bad = producer.send_nowait(b"x", attributes={"size": 7})  # type: ignore[dict-item]
            with pytest.raises(InvalidRequest, match="cannot be sent"):
                await bad
            assert (await good).offset == 0
            with pytest.raises(InvalidRequest, match="encode it"):
                producer.send_nowait("text")  # type: ignore[arg-type]
        assert puts.payloads == [b"0"]

    with_client(test)


def test_what_was_given_up_before_it_was_sent_is_not_sent() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        puts = batches_of(cluster)
        async with client.producer(TOPIC) as producer:
            given_up = producer.send_nowait(b"x")
            given_up.cancel()
            await asyncio.sleep(1)
            await producer.send(b"0")
        assert puts.payloads == [b"0"]

    with_client(test)


def test_a_broker_that_does_not_answer_is_left_at_the_deadline() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        puts = batches_of(cluster)
        puts.troubles.append("hang")
        loop = asyncio.get_running_loop()
        async with client.producer(TOPIC, send_seconds_max=7) as producer:
            started = loop.time()
            hanging = producer.send_nowait(b"x")
            await asyncio.sleep(3)
            patient = producer.send_nowait(b"0")
            with pytest.raises(Unavailable, match="may or may not be stored"):
                await hanging
            assert loop.time() - started == pytest.approx(7)
            await patient  # In another stream.
        assert (puts.payloads, puts.streams) == ([b"0"], 2)

    with_client(test)


def test_no_more_wait_for_an_answer_than_there_is_room_for() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        batches_of(cluster)
        async with client.producer(TOPIC) as producer:
            answers = [producer.send_nowait(b"x") for _ in range(IN_FLIGHT_MAX)]
            with pytest.raises(Overloaded, match="unacknowledged"):
                producer.send_nowait(b"y")
            last = await producer.send(b"z")  # Waits.
            assert last.offset == IN_FLIGHT_MAX
            await asyncio.gather(*answers)
            await producer.send_nowait(b"y")

    with_client(test)


def test_closing_waits_for_what_is_under_way() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        puts = batches_of(cluster)
        puts.troubles.append("refuse")
        async with client.producer(TOPIC) as producer:
            answers = [producer.send_nowait(payload) for payload in numbers(3)]
        assert [answer.result().offset for answer in answers] == [0, 1, 2]
        assert puts.open_streams == 0
        with pytest.raises(Conflict, match="closed"):
            producer.send_nowait(b"x")

    with_client(test)


def test_closing_does_not_wait_for_ever() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        puts = batches_of(cluster)
        puts.troubles.append("hang")
        started = asyncio.get_running_loop().time()
        async with client.producer(TOPIC) as producer:
            answer = producer.send_nowait(b"x")
        assert asyncio.get_running_loop().time() - started <= 6
        with pytest.raises(Unavailable, match="closed"):
            await answer

    with_client(test)


def test_batches_and_single_messages_keep_their_order() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        puts = batches_of(cluster)
        async with client.producer(TOPIC) as producer:
            first = producer.send_nowait(b"0")
            batch = asyncio.create_task(producer.send_batch([b"1", b"2"]))
            await asyncio.sleep(0)
            last = producer.send_nowait(b"3")
            await asyncio.gather(first, batch, last)
        assert puts.payloads == numbers(4)

    with_client(test)


def test_a_broker_without_batches_gets_messages_one_by_one_in_their_order() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        async with client.producer(TOPIC) as producer:
            answers = [producer.send_nowait(payload) for payload in numbers(30)]
            await asyncio.gather(*answers)
            await producer.send(b"30")
        assert cluster.payloads(TOPIC) == numbers(31)

    with_client(test)


def test_two_lives_of_one_name_count_apart() -> None:
    async def test(client: Client, cluster: FakeBrokers) -> None:
        puts = batches_of(cluster)
        for payload in numbers(2):
            async with client.producer(TOPIC, name="till") as producer:
                await producer.send(payload)
        assert puts.payloads == numbers(2)

    with_client(test)
