"""Whatever is appended, settled, rotated and reopened: the journal gives back what it took."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.model.ids import Offset, SubscriptionId, TopicId
from pydanube.model.progress import Progress, ProgressChange
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.storage.storage import Storage
from tests.support.journals import Broker, payloads_of, rotating_at

TOPICS = st.integers(1, 3)
OFFSETS = st.integers(0, 12)


@dataclass(frozen=True)
class Append:
    topic: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Settle:
    settled: tuple[tuple[int, int], ...]
    attempts: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Reopen:
    cleanly: bool


@dataclass(frozen=True)
class Read:
    topic: int
    start: int
    length: int
    bytes_max: int


def ranges() -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(OFFSETS, OFFSETS).map(lambda pair: (min(pair), max(pair)))


STEPS = st.one_of(
    st.builds(
        Append,
        TOPICS,
        st.lists(st.sampled_from([0, 1, 30, 3000]), min_size=1, max_size=4).map(tuple),
    ),
    st.builds(
        Settle,
        st.lists(ranges(), max_size=3).map(tuple),
        st.lists(
            st.tuples(ranges(), st.integers(1, 3)).map(lambda t: (*t[0], t[1])), max_size=3
        ).map(tuple),
    ),
    st.builds(Reopen, st.booleans()),
    st.builds(Read, TOPICS, OFFSETS, st.integers(0, 9), st.sampled_from([1, 2000, 10**6])),
)


@dataclass
class Model:
    """The same without a journal: lists, sets and dicts of single offsets."""

    messages: dict[int, list[bytes]] = field(default_factory=lambda: {1: [], 2: [], 3: []})
    settled: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)

    def settle(self, change: Settle) -> None:
        for start, end in change.settled:
            self.settled |= set(range(start, end))
        for start, end, attempts in change.attempts:
            self.attempts |= dict.fromkeys(range(start, end), attempts)
        self.attempts = {o: n for o, n in self.attempts.items() if o not in self.settled}

    def matches(self, progress: Progress) -> bool:
        held = set(range(progress.cursor))
        for start, end in progress.settled:
            held |= set(range(start, end))
        counted = {o: n for start, end, n in progress.attempts for o in range(start, end)}
        return held == self.settled and counted == self.attempts


async def read_everything(storage: Storage, topic: int) -> list[bytes]:
    log = storage.topic(TopicId(topic))
    found: list[bytes] = []
    while pieces := await log.read(Offset(len(found)), log.durable_end, bytes_max=5000):
        assert pieces[0].start == len(found)
        found += payloads_of(pieces)
    return found


async def check(broker: Broker, model: Model) -> None:
    for topic, expected in model.messages.items():
        assert broker.storage.topic(TopicId(topic)).next_offset == len(expected)
        assert await read_everything(broker.storage, topic) == expected
    progress = broker.storage.progress(SubscriptionId(7))
    assert progress is not None
    assert model.matches(progress)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(STEPS, max_size=25),
    st.sampled_from([1, 2000, 10_000]),
    st.sampled_from([0, 3000, 10**6]),
)
def test_the_journal_gives_back_what_it_took(
    steps: list[Append | Settle | Reopen | Read], file_bytes: int, cache_bytes: int
) -> None:
    async def main(_: object) -> None:
        disk = SimulatedDisk(delay_seconds=(0.0, 0.0))
        config = rotating_at(file_bytes, tail_cache_bytes_max=cache_bytes)
        model = Model()
        broker = await Broker.start(disk, config)
        await broker.create_subscription(7, 0)
        for number, step in enumerate(steps):
            match step:
                case Append(topic, sizes):
                    payloads = [b"%d" % number + bytes(size) for size in sizes]
                    assert await broker.append(topic, *payloads) == len(model.messages[topic])
                    model.messages[topic] += payloads
                case Settle(settled, attempts):
                    await broker.begin_settle(7, ProgressChange(settled, attempts))
                    model.settle(step)
                case Reopen(cleanly):
                    if cleanly:
                        await broker.stop()
                    else:
                        disk.kill()
                        await broker.abandon()
                    broker = await Broker.start(disk, config)
                case Read(topic, start, length, bytes_max):
                    log = broker.storage.topic(TopicId(topic))
                    expected = model.messages[topic][start : start + length]
                    pieces = await log.read(
                        Offset(start), Offset(start + length), bytes_max=bytes_max
                    )
                    found = payloads_of(pieces)
                    assert found == expected[: len(found)]
                    assert bool(found) == bool(expected)
                    if bytes_max == 10**6:
                        assert found == expected
        await check(broker, model)
        await broker.stop()
        broker = await Broker.start(disk, config)
        await check(broker, model)
        await broker.stop()

    run_simulated(main, 0)
