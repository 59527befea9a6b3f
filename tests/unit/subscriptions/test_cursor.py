"""A cursor's promise: an ack is answered after what it settled is durable, and not before."""

import asyncio
from typing import Literal

from pydanube.errors import DanubeError, Overloaded, Unavailable
from pydanube.model.ids import Offset, SubscriptionId
from pydanube.model.progress import Progress, ProgressChange
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.storage.topic_log import Guard
from pydanube.subscriptions.cursor import Cursor, Done


class Log:
    """Takes changes and answers when the test says so."""

    def __init__(self) -> None:
        self.changes: list[ProgressChange | Progress] = []
        self.answers: list[Done] = []

    def append_progress(
        self, subscription: SubscriptionId, change: ProgressChange, done: Done
    ) -> None:
        self.changes.append(change)
        self.answers.append(done)

    def replace_progress(
        self, subscription: SubscriptionId, progress: Progress, done: Done
    ) -> None:
        self.changes.append(progress)
        self.answers.append(done)


def cursor_over(log: Log, guard: Guard | None = None) -> Cursor:
    return Cursor(SubscriptionId(1), log, SimulatedClock(), guard)


def test_what_one_tick_settles_is_one_change() -> None:
    async def main(_: Randomness) -> None:
        log = Log()
        cursor = cursor_over(log)
        cursor.settle(0, 3)
        cursor.settle(3, 4)
        cursor.count(7, 8, 2)
        await asyncio.sleep(0)
        assert log.changes == [ProgressChange(((0, 4),), ((7, 8, 2),))]

    run_simulated(main, 1)


def test_an_ack_is_answered_after_the_sync_that_covers_it() -> None:
    async def main(_: Randomness) -> None:
        log = Log()
        cursor = cursor_over(log)
        answers: list[DanubeError | None] = []
        cursor.settle(0, 1)
        cursor.when_durable(answers.append)
        await asyncio.sleep(0)
        assert answers == []
        log.answers[0](None)
        assert answers == [None]

    run_simulated(main, 1)


def test_an_ack_that_settles_nothing_new_waits_for_what_is_on_its_way() -> None:
    async def main(_: Randomness) -> None:
        log = Log()
        cursor = cursor_over(log)
        answers: list[DanubeError | None] = []
        cursor.settle(0, 1)
        await asyncio.sleep(0)
        cursor.when_durable(answers.append)  # A repeated ack of the same message.
        assert answers == []
        log.answers[0](None)
        assert answers == [None]
        cursor.when_durable(answers.append)
        assert answers == [None, None]

    run_simulated(main, 1)


def test_a_failed_journal_is_told_to_whoever_waits() -> None:
    async def main(_: Randomness) -> None:
        log = Log()
        cursor = cursor_over(log)
        answers: list[DanubeError | None] = []
        cursor.settle(0, 1)
        cursor.when_durable(answers.append)
        await asyncio.sleep(0)
        failure = Unavailable("the journal has stopped")
        log.answers[0](failure)
        assert answers == [failure]
        cursor.when_durable(answers.append)  # The ack is repeated; nothing is left to record.
        assert answers == [failure, failure]

    run_simulated(main, 1)


class Doubt:
    """What is known of whose topic it is, and a cursor with one ack that is in the journal."""

    def __init__(self, verdict: DanubeError | Literal["wait"] | None) -> None:
        self.verdict = verdict
        self.log = Log()
        self.cursor = cursor_over(self.log, lambda: self.verdict)
        self.answers: list[DanubeError | None] = []

    async def ack(self) -> None:
        self.cursor.settle(0, 1)
        self.cursor.when_durable(self.answers.append)
        await asyncio.sleep(0)
        self.log.answers[0](None)


def test_an_ack_waits_until_it_is_certain_whose_topic_it_is() -> None:
    async def main(_: Randomness) -> None:
        doubt = Doubt("wait")
        await doubt.ack()
        doubt.cursor.when_durable(doubt.answers.append)
        doubt.cursor.answer()
        assert doubt.answers == []
        doubt.verdict = None
        doubt.cursor.answer()
        assert doubt.answers == [None, None]

    run_simulated(main, 1)


def test_an_ack_of_a_topic_that_was_lost_is_refused() -> None:
    async def main(_: Randomness) -> None:
        lost = Unavailable("cut off")
        doubt = Doubt(lost)
        await doubt.ack()
        assert doubt.answers == [lost]
        doubt.verdict = None
        doubt.cursor.when_durable(doubt.answers.append)
        assert doubt.answers == [lost, lost], "the next owner may not know of it"

    run_simulated(main, 1)


def test_nobody_waits_for_a_cursor_that_is_closed() -> None:
    async def main(_: Randomness) -> None:
        doubt = Doubt("wait")
        await doubt.ack()
        doubt.cursor.close()
        assert isinstance(doubt.answers[0], Unavailable)

    run_simulated(main, 1)


def test_a_change_that_was_not_taken_is_offered_again_before_later_ones() -> None:
    async def main(_: Randomness) -> None:
        log = Log()
        cursor = cursor_over(log)
        answers: list[DanubeError | None] = []
        cursor.settle(0, 1)
        cursor.count(5, 6, 1)
        cursor.when_durable(answers.append)
        await asyncio.sleep(0)
        log.answers[0](Overloaded("full"))
        cursor.settle(2, 3)
        cursor.count(5, 6, 2)
        await asyncio.sleep(1)
        assert log.changes[1:] == [ProgressChange(((0, 1), (2, 3)), ((5, 6, 1), (5, 6, 2)))]
        assert answers == []
        log.answers[1](None)
        assert answers == [None]

    run_simulated(main, 1)


def test_a_seek_replaces_all_that_was_recorded_before_it() -> None:
    async def main(_: Randomness) -> None:
        log = Log()
        cursor = cursor_over(log)
        answers: list[str] = []
        cursor.settle(0, 3)
        cursor.when_durable(lambda error: answers.append("before"))
        cursor.seek(Offset(1))
        cursor.settle(1, 2)
        cursor.settle(5, 6)
        cursor.count(7, 8, 2)
        cursor.when_durable(lambda error: answers.append("after"))
        await asyncio.sleep(0)
        assert log.changes == [Progress(Offset(2), ((5, 6),), ((7, 8, 2),))]
        log.answers[0](None)
        assert answers == ["before", "after"]
        cursor.settle(2, 3)
        await asyncio.sleep(0)
        assert log.changes[1:] == [ProgressChange(((2, 3),))]

    run_simulated(main, 1)


def test_what_was_refused_before_a_seek_is_not_recorded_after_it() -> None:
    async def main(_: Randomness) -> None:
        log = Log()
        cursor = cursor_over(log)
        answers: list[DanubeError | None] = []
        cursor.settle(0, 3)
        cursor.when_durable(answers.append)
        await asyncio.sleep(0)
        cursor.seek(Offset(1))
        log.answers[0](Overloaded("full"))
        await asyncio.sleep(0)
        assert log.changes[1:] == [Progress(Offset(1))]
        log.answers[1](None)
        assert answers == [None]

    run_simulated(main, 1)


def test_a_seek_that_was_refused_is_recorded_later_with_all_that_followed() -> None:
    async def main(_: Randomness) -> None:
        log = Log()
        cursor = cursor_over(log)
        cursor.seek(Offset(4))
        await asyncio.sleep(0)
        log.answers[0](Overloaded("full"))
        cursor.settle(4, 5)
        await asyncio.sleep(1)
        assert log.changes[1:] == [Progress(Offset(5))]

    run_simulated(main, 1)
