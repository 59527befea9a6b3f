"""Producers that repeat whatever was not answered, on a disk that stops at every step it takes.

Whatever stops where: in the end every value is stored, once, and in its producer's order.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from pydanube.errors import DanubeError, Overloaded, Unavailable
from pydanube.model.ids import ProducerId
from pydanube.model.sequences import (
    AlreadyApplied,
    Applied,
    MessageSequence,
    Overlap,
    SequenceRange,
)
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.storage.journal import contents, records
from pydanube.storage.topic_log import TopicLog
from pydanube.topics import sequencing
from pydanube.topics.sequencing import Sequencer, judge
from tests.support.journals import rotating_at
from tests.support.served_topic import Answer, ServedTopic, batch_from, message

# So small that a new file begins every other round.
CONFIG = rotating_at(2_000, journal_direct_bytes_min=1)
VALUES_EACH_LIFE = 6


class BatchProducer:
    """Numbers its values and sends them in batches, cut anew whenever they are sent again."""

    def __init__(self, name: str, randomness: Randomness) -> None:
        self.name = name
        self._randomness = randomness
        self.values: list[bytes] = []
        self.stored = 0
        """How many of them the topic is known to have."""

    async def work(self, topic: ServedTopic) -> None:
        self.values += [b"%s %d" % (self.name.encode(), n) for n in self._new()]
        while self.stored < len(self.values):
            await self._send_some(topic)

    def _new(self) -> range:
        return range(len(self.values), len(self.values) + VALUES_EACH_LIFE)

    async def _send_some(self, topic: ServedTopic) -> None:
        """Send the next batches without waiting in between, each naming the one before."""
        first = self.stored
        previous: int | None = None
        answers = []
        for _ in range(1 + self._randomness.below(3)):
            end = min(first + 1 + self._randomness.below(3), len(self.values))
            if first == end:
                break
            # A client that loses patience sends a batch twice.
            times = 1 + (self._randomness.below(3) == 0)
            put = (self._put(topic, first, end, previous) for _ in range(times))
            answers += [(first, end, answer) for answer in put]
            previous = end - 1
            first = end
        results = await asyncio.gather(
            *(answer.over for _, _, answer in answers), return_exceptions=True
        )
        for (first, end, _), result in zip(answers, results, strict=True):
            self._learn(first, end, result)
        # Behind an overlap everything is refused until the rest of that batch is there.
        if not any(isinstance(result, Applied | AlreadyApplied | Overlap) for result in results):
            raise Unavailable("nothing works any more")

    def _put(self, topic: ServedTopic, first: int, end: int, previous: int | None) -> Answer:
        batch = batch_from(*self.values[first:end], producer=self.name)
        stamp = SequenceRange(producer=self.name, first=first, last=end - 1, previous=previous)
        return topic.put(batch, stamp)

    def _learn(self, first: int, end: int, outcome: object) -> None:
        match outcome:
            case Applied() | AlreadyApplied():
                self.stored = max(self.stored, end)
            case Overlap(last_sequence):
                assert first <= last_sequence < end - 1
                self.stored = max(self.stored, last_sequence + 1)
            case Unavailable():
                pass
            case _:
                raise AssertionError(outcome)


class MessageProducer:
    """Numbers its messages in a session, each after the one before, many under way at once."""

    def __init__(self, name: str, randomness: Randomness) -> None:
        self.name = name
        self._randomness = randomness
        self.values: list[bytes] = []
        self.stored: set[int] = set()

    async def work(self, topic: ServedTopic) -> None:
        start = len(self.values)
        self.values += [
            b"%s %d" % (self.name.encode(), n) for n in range(start, start + VALUES_EACH_LIFE)
        ]
        while missing := [n for n in range(len(self.values)) if n not in self.stored]:
            if not self.stored:
                missing = missing[:1]  # The first one makes the session known.
            await self._send_some(topic, missing)

    async def _send_some(self, topic: ServedTopic, missing: Sequence[int]) -> None:
        some = list(missing[:4])
        # What goes out in order may arrive in any, and twice.
        some += [n for n in some if self._randomness.below(4) == 0]
        some.sort(key=lambda _: self._randomness.below(1_000))
        sent = [(n, topic.send(message(self.values[n], self.name), self._number(n))) for n in some]
        results = await asyncio.gather(*(answer.over for _, answer in sent), return_exceptions=True)
        for (number, _), result in zip(sent, results, strict=True):
            if isinstance(result, DanubeError):
                assert isinstance(result, Unavailable | Overloaded), result
            else:
                self.stored.add(number)
        if all(isinstance(result, DanubeError) for result in results):
            raise Unavailable("nothing works any more")

    def _number(self, number: int) -> MessageSequence:
        return MessageSequence(number, number - 1 if number else None, 77)


class World:
    """One disk, one topic after another on it, and producers that outlive them."""

    def __init__(self, randomness: Randomness) -> None:
        self.disk = SimulatedDisk(randomness)
        self.producers = [
            BatchProducer("anne", randomness),
            BatchProducer("bill", randomness),
            MessageProducer("carl", randomness),
        ]

    async def live(self) -> bool:
        """Serve the topic while everybody works; tell whether it came to its end."""
        try:
            topic = await ServedTopic.start(self.disk.mount(), CONFIG)
        except Unavailable:
            return False
        try:
            results = await asyncio.gather(
                *(producer.work(topic) for producer in self.producers), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            await self.check(topic)
            await topic.storage.close()
        except (Unavailable, OSError):
            return False
        finally:
            await topic.abandon()
        return True

    async def check(self, topic: ServedTopic) -> None:
        payloads = await topic.payloads()
        for producer in self.producers:
            found = [value for value in payloads if value.startswith(producer.name.encode())]
            assert len(found) == len(set(found)), f"{producer.name}: stored twice: {found}"
            assert not set(producer.values) - set(found), f"{producer.name}: lost"
            assert found == producer.values, f"{producer.name}: out of order: {found}"


@cache
def operations() -> int:
    """How much two lives do when nothing goes wrong."""

    async def main(randomness: Randomness) -> int:
        world = World(randomness)
        assert await world.live()
        assert await world.live()
        return world.disk.operations

    return run_simulated(main, "count")


def crash_everywhere(seeds: int, every: int = 1) -> int:
    """Stop the machine at each of its operations, again and again, and let producers go on."""

    async def main(randomness: Randomness, number: int, after: bool) -> int:
        world = World(randomness)
        world.disk.crash_at(number, after=after)
        for _ in range(2):
            if not await world.live():
                break
        crashes = 0
        for _ in range(3):
            if randomness.below(4):
                world.disk.crash(randomness)
            else:
                world.disk.kill()
            crashes += 1
            world.disk.crash_at(world.disk.operations + 1 + randomness.below(40))
            await world.live()
        world.disk.crash(randomness)
        assert await world.live()
        return crashes + 1

    return sum(
        run_simulated(lambda r, n=number, a=after: main(r, n, a), f"{number} {after} {seed}")
        for number in range(1, operations() + 1, every)
        for after in (False, True)
        for seed in range(seeds)
    )


@pytest.mark.slow
def test_what_is_repeated_after_any_crash_is_stored_once_and_never_lost() -> None:
    crashes = crash_everywhere(seeds=3)
    print(f"stopped at {operations()} operations, {crashes} crashes lived through")


# Planted bugs: each of them loses a value or stores it twice.


def _repeats_do_not_wait(self: TopicLog, producer_id: ProducerId, done: Any) -> None:
    done(None)


def _knows_what_is_queued(append: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: TopicLog, *args: Any, **kwargs: Any) -> Any:
        base = append(self, *args, **kwargs)
        stamp = kwargs.get("stamp")
        if stamp is not None:
            last = self.last_batch(stamp.producer_id)
            assert last is not None
            self._index.producers[stamp.producer_id] = last
        return base

    return broken


def _no_producers(topics: Any) -> Iterator[bytes]:
    return iter(())


def _nobody_waits(self: Sequencer, key: Any, numbered: Any, last: Any) -> None:
    self._gather(key, numbered, last)


def _anything_may_follow(known: Any, sent: SequenceRange) -> Any:
    return judge(known, replace(sent, previous=None))


BUGS: dict[str, tuple[Any, str, Any]] = {
    "repeats do not wait for the sync": (TopicLog, "when_last_is_durable", _repeats_do_not_wait),
    "a prologue knows what is only queued": (
        TopicLog,
        "append",
        _knows_what_is_queued(TopicLog.append),
    ),
    "a prologue knows no producers": (records, "encode_producers", _no_producers),
    "recovery ignores stamps": (contents, "_fold_stamp", lambda index, payload: None),
    "batches do not wait for the one before": (sequencing, "judge", _anything_may_follow),
    "early messages do not wait": (Sequencer, "_wait_for_previous", _nobody_waits),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_the_crashes_find_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operations()  # Counted without the bug.
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(AssertionError) as found:
        crash_everywhere(seeds=1)
    print(bug, "->", str(found.value).splitlines()[0][:80])
