import asyncio

from pydanube.wire.http2.turns import PAUSE_SECONDS, Turns


class HandClock:
    """Pauses end when the test says so."""

    def __init__(self):
        self.pauses = []

    def call_later(self, seconds, callback):
        assert seconds == PAUSE_SECONDS
        self.pauses.append(callback)

    def end_pause(self):
        self.pauses.pop()()


class Worker:
    def __init__(self, name, turns, diary, *, imposes=False):
        self._name, self._left, self._diary = name, turns, diary
        self.imposes = imposes

    def take_turn(self):
        self._diary.append(self._name)
        self._left -= 1
        return self._left > 0


async def test_those_who_wait_take_turns():
    diary, turns = [], Turns(HandClock())
    for name, count in (("a", 3), ("b", 1), ("c", 2)):
        turns.wait(Worker(name, count, diary))
    for _ in range(10):
        await asyncio.sleep(0)
    assert diary == ["a", "b", "c", "a", "c", "a"]


async def test_one_turn_is_given_each_time_the_event_loop_comes_round():
    diary, turns = [], Turns(HandClock())
    for name in "abc":
        turns.wait(Worker(name, 2, diary))
    for count in range(1, 7):
        await asyncio.sleep(0)
        assert len(diary) == count


async def test_who_comes_back_waits_again():
    diary, turns = [], Turns(HandClock())
    worker = Worker("a", 1, diary)
    for count in (1, 2):
        turns.wait(worker)
        await asyncio.sleep(0)
        assert diary == ["a"] * count


async def test_those_who_impose_share_one_turn_between_two_pauses_and_keep_nobody_else_waiting():
    diary, clock = [], HandClock()
    turns = Turns(clock)
    for name in "xy":
        turns.wait(Worker(name, 2, diary, imposes=True))
    turns.wait(Worker("a", 3, diary))
    for _ in range(10):
        await asyncio.sleep(0)
    assert diary == ["a", "a", "a"]
    for expected in ("x", "y", "x", "y"):
        assert len(clock.pauses) == 1
        clock.end_pause()
        assert diary[-1] == expected
    assert clock.pauses == []


async def test_who_imposes_no_more_waits_among_the_others():
    diary, clock = [], HandClock()
    turns = Turns(clock)
    worker = Worker("x", 3, diary, imposes=True)
    turns.wait(worker)
    worker.imposes = False
    clock.end_pause()
    assert clock.pauses == []
    for _ in range(5):
        await asyncio.sleep(0)
    assert diary == ["x", "x", "x"]
