"""When a broker counts as unable to write."""

import asyncio

import pytest

from pydanube.broker.disk_watch import Disk, DiskWatch, Trouble, WritingTime
from pydanube.broker.giving_up import EXIT_CODE, GaveUp, end_process
from pydanube.errors import Unavailable
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.loop import run_simulated


def test_one_write_counts_from_its_beginning_and_the_next_one_anew() -> None:
    time = WritingTime()
    assert time.look(None, 1_000) == 0
    assert time.look(1_100, 1_200) == 100
    assert time.look(1_100, 1_400) == 300
    assert time.look(1_390, 1_600) == 210
    assert time.look(None, 1_800) == 0


def test_time_in_which_the_process_stood_still_says_nothing_of_its_disk() -> None:
    time = WritingTime()
    time.look(1_000, 1_100)
    assert time.look(1_000, 31_000) == 500, "one look counts for at most two"
    assert WritingTime().look(1_000, 31_000) == 400


class Journal:
    """A disk as the watch sees it."""

    def __init__(self) -> None:
        self.failure: Unavailable | None = None
        self.since_ms: int | None = None
        self.waiting_for: str | None = None
        self.clock = SimulatedClock()

    def watch(self, seconds_max: float | None = 5.0) -> DiskWatch:
        disk = Disk(
            name="the journal",
            failure=lambda: self.failure,
            writing_since_ms=lambda: self.since_ms,
            waiting_for=lambda: self.waiting_for,
        )
        return DiskWatch(self.clock, [disk], seconds_max)

    def begins_to_write(self) -> None:
        self.since_ms = self.clock.monotonic_ms()


def test_a_write_that_hangs_is_trouble_after_its_time_and_none_when_it_ends() -> None:
    async def main(_: Randomness) -> None:
        journal = Journal()
        journal.begins_to_write()
        watch = journal.watch()
        watching = asyncio.create_task(watch.until(lambda trouble: trouble.is_final))
        await asyncio.sleep(4.9)
        assert watch.trouble is None
        await asyncio.sleep(0.4)
        assert watch.trouble is not None
        assert not watch.trouble.is_final
        assert "storage.sync_seconds_max" in str(watch.trouble.error())
        journal.since_ms = None
        await asyncio.sleep(0.4)
        assert watch.trouble is None
        assert not watching.done()
        watching.cancel()

    run_simulated(main, "hangs")


@pytest.mark.parametrize("seconds_max", [5.0, None])
def test_a_failed_write_is_trouble_at_once(seconds_max: float | None) -> None:
    async def main(_: Randomness) -> None:
        journal = Journal()
        watch = journal.watch(seconds_max)
        watching = asyncio.create_task(watch.until(lambda trouble: trouble.is_final))
        await asyncio.sleep(0.05)
        journal.failure = Unavailable("the journal stopped: [Errno 5]. See to the disk")
        watch.wake()
        async with asyncio.timeout(0.05):
            trouble = await watching
        assert trouble == Trouble(why="the journal stopped: [Errno 5]", is_final=True)

    run_simulated(main, "fails")


def test_without_a_limit_a_write_may_take_for_ever() -> None:
    async def main(_: Randomness) -> None:
        journal = Journal()
        journal.begins_to_write()
        watch = journal.watch(None)
        watching = asyncio.create_task(watch.until(lambda trouble: True))
        await asyncio.sleep(1_000)
        assert watch.trouble is None
        watching.cancel()

    run_simulated(main, "no limit")


@pytest.mark.parametrize("begins_anew", [True, False])
def test_a_process_begins_anew_or_ends_with_a_code_of_its_own(*, begins_anew: bool) -> None:
    done: list[object] = []
    end_process(
        GaveUp(why="ill", hangs=True, begins_anew=begins_anew),
        begin=lambda: done.append("begin"),
        end=done.append,
    )
    # Whoever cannot begin anew ends, so that somebody else starts it.
    assert done == (["begin", EXIT_CODE] if begins_anew else [EXIT_CODE])


def test_a_write_that_waits_for_room_is_trouble_after_its_time_and_says_what_is_lacking() -> None:
    async def main(_: Randomness) -> None:
        journal = Journal()
        journal.begins_to_write()
        journal.waiting_for = "the journal waits for room: free space"
        trouble = await journal.watch().until(lambda trouble: True)
        assert not trouble.is_final
        assert "waits for room: free space" in trouble.why
        assert "storage.sync_seconds_max" in trouble.why

    run_simulated(main, 1)
