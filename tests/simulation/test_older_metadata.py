"""A broker whose metadata are put back to an older copy, by seed, loses nothing it acknowledged."""

from contextlib import ExitStack
from unittest.mock import patch

from pydanube.storage.journal.comparison import Compared
from pydanube.storage.journal.knowing import Knowing
from pydanube.storage.storage import Storage
from pydanube.topics.catalog import Ids
from tests.support.older_metadata import OlderMetadata

SEEDS = 30


def test_an_older_copy_costs_nothing() -> None:
    refusals = 0
    for seed in range(SEEDS):
        world = OlderMetadata(seed)
        assert world.run() == [], "\n".join([f"seed {seed}", *world.notes[-30:]])
        refusals += world.refusals
    assert SEEDS // 4 < refusals < SEEDS, "some copies lack something, and some do not"


class GivenTwice(OlderMetadata):
    """What a broker of before leaves behind: one id, two topics, and a journal it cannot read."""

    async def _lives(self) -> None:
        with ExitStack() as before:
            before.enter_context(patch.object(Knowing, "_note", lambda self, note: None))
            before.enter_context(patch.object(Storage, "compare", lambda self, *rest: Compared()))
            before.enter_context(patch.object(Ids, "never_again", lambda self, given: None))
            await self._live(0)
            copy = await self._copied()
            await self._create("/default/first", 5)
            await self._put_back(copy)
            await self._create("/default/second", 3)
        assert not await self._machine.start()
        assert "danube recover" in self._machine.complaints[0]
        self._machine.refused.clear()
        self._machine.complaints.clear()
        report = await self._recover()
        ((line, *more), (topic,)) = report.ids_given_twice, report.topics
        assert not more
        assert (line.offsets, topic.id) == ("0 to 4", line.new_id)
        self.acknowledged[topic.topic] = self.acknowledged.pop("/default/first")
        for _ in range(2):
            await self._audit()
        assert not (await self._recover()).has_work


def test_two_topics_with_one_id_of_an_earlier_version_are_told_apart() -> None:
    world = GivenTwice(0)
    assert world.run() == [], "\n".join(world.notes[-30:])
