import asyncio

from pydanube.wire.http2.turns import Pace, Turns


class HandClock:
    """Pauses end when the test says so."""

    def __init__(self):
        self.pauses = {}

    def call_later(self, seconds, callback):
        assert seconds not in self.pauses
        self.pauses[seconds] = callback

    def end_pause(self, pace):
        self.pauses.pop(pace.value)()


class Worker:
    def __init__(self, name, turns, diary, *, pace=Pace.STEADY):
        self._name, self._left, self._diary = name, turns, diary
        self.pace = pace

    def take_turn(self):
        self._diary.append(self._name)
        self._left -= 1
        return self._left > 0


async def rounds(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_those_who_wait_take_turns():
    diary, turns = [], Turns(HandClock())
    for name, count in (("a", 3), ("b", 1), ("c", 2)):
        turns.wait(Worker(name, count, diary))
    await rounds()
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


async def test_who_is_in_line_already_keeps_its_place():
    diary, turns = [], Turns(HandClock())
    first, second = Worker("a", 1, diary), Worker("b", 1, diary)
    for worker in (first, second, first):
        turns.wait(worker)
    await rounds()
    assert diary == ["a", "b"]


async def test_those_at_a_slower_pace_share_its_turns_and_keep_nobody_else_waiting():
    diary, clock = [], HandClock()
    turns = Turns(clock)
    for name in "xy":
        turns.wait(Worker(name, 2, diary, pace=Pace.PAUSING))
    turns.wait(Worker("z", 1, diary, pace=Pace.TRICKLING))
    turns.wait(Worker("a", 3, diary))
    await rounds()
    assert diary == ["a", "a", "a"]
    for expected in ("x", "y", "x", "y"):
        assert set(clock.pauses) == {Pace.PAUSING.value, Pace.TRICKLING.value}
        clock.end_pause(Pace.PAUSING)
        assert diary[-1] == expected
    clock.end_pause(Pace.TRICKLING)
    assert diary[-1] == "z"
    assert clock.pauses == {}


async def test_who_changes_its_pace_waits_among_the_others():
    diary, clock = [], HandClock()
    turns = Turns(clock)
    worker = Worker("x", 3, diary, pace=Pace.PAUSING)
    turns.wait(worker)
    worker.pace = Pace.STEADY
    clock.end_pause(Pace.PAUSING)
    assert clock.pauses == {}
    await rounds()
    assert diary == ["x", "x", "x"]


async def test_who_may_go_faster_need_not_wait_for_the_pause_to_end():
    diary, clock = [], HandClock()
    turns = Turns(clock)
    worker = Worker("x", 1, diary, pace=Pace.TRICKLING)
    turns.wait(worker)
    worker.pace = Pace.STEADY
    turns.wait(worker)
    await rounds()
    assert diary == ["x"]
    clock.end_pause(Pace.TRICKLING)
    assert diary == ["x"]


async def test_who_is_forgotten_gets_no_turn():
    diary, turns = [], Turns(HandClock())
    gone, stays = Worker("a", 1, diary), Worker("b", 1, diary)
    turns.wait(gone)
    turns.wait(stays)
    turns.forget(gone)
    turns.forget(gone)
    await rounds()
    assert diary == ["b"]
