import asyncio

from pydanube.wire.http2.turns import Turns


class Worker:
    def __init__(self, name, turns, diary):
        self._name, self._left, self._diary = name, turns, diary

    def take_turn(self):
        self._diary.append(self._name)
        self._left -= 1
        return self._left > 0


async def test_those_who_wait_take_turns():
    diary, turns = [], Turns()
    for name, count in (("a", 3), ("b", 1), ("c", 2)):
        turns.wait(Worker(name, count, diary))
    for _ in range(10):
        await asyncio.sleep(0)
    assert diary == ["a", "b", "c", "a", "c", "a"]


async def test_one_turn_is_given_each_time_the_event_loop_comes_round():
    diary, turns = [], Turns()
    for name in "abc":
        turns.wait(Worker(name, 2, diary))
    for count in range(1, 7):
        await asyncio.sleep(0)
        assert len(diary) == count


async def test_who_comes_back_waits_again():
    diary, turns = [], Turns()
    worker = Worker("a", 1, diary)
    for count in (1, 2):
        turns.wait(worker)
        await asyncio.sleep(0)
        assert diary == ["a"] * count
