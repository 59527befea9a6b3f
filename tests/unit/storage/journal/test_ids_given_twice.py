"""An id that older metadata gave to two topics: the state is named, read past, and mended."""

import pytest

from pydanube.model.ids import Offset, SubscriptionId, TopicId
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.storage.errors import JournalContradiction
from pydanube.storage.journal.contents import index_name
from pydanube.storage.journal.quarantine import QUARANTINE_DIRECTORY, quarantine
from pydanube.storage.journal.recovery import survey_all
from pydanube.storage.journal.relabelling import Relabel, relabel
from tests.compatibility.journal_golden import PLAIN, RICH, STAMP, append
from tests.compatibility.test_journal_format import read_messages
from tests.support.journals import DIRECTORY, broker_on, instant_disk, rotating_at

SHARED, OTHER, FRESH = TopicId(1024), TopicId(1025), TopicId(4096)


async def journal_with_an_id_given_twice(disk: SimulatedDisk) -> None:
    """Write what a broker of before leaves that was started on older metadata."""
    async with broker_on(disk, rotating_at(2_000), identity="GOLDEN/1") as broker:
        await append(broker, SHARED, [RICH, PLAIN, RICH], stamp=STAMP)
        await append(broker, OTHER, [PLAIN])
        await append(broker, SHARED, [PLAIN])
        await append(broker, OTHER, [RICH])
    async with broker_on(disk, rotating_at(2_000), identity="GOLDEN/1") as broker:
        broker.storage.keep_only({OTHER}, set[SubscriptionId]())
        await append(broker, SHARED, [PLAIN, PLAIN])
        await append(broker, OTHER, [PLAIN])


async def test_it_is_named_with_the_command_that_mends_it() -> None:
    disk = instant_disk()
    await journal_with_an_id_given_twice(disk)
    with pytest.raises(JournalContradiction, match="danube recover --data-dir DIR"):
        async with broker_on(disk, identity="GOLDEN/1"):
            pass


async def test_looking_and_quarantine_read_past_it() -> None:
    disk = instant_disk()
    await journal_with_an_id_given_twice(disk)
    found = await survey_all(disk, DIRECTORY, tells_apart=True)
    (earlier,) = found.contents.earlier or ()
    assert (earlier.topic_id, earlier.index.end) == (SHARED, 4)
    assert found.contents.topics[SHARED].end == 2
    assert (await quarantine(disk, DIRECTORY, SimulatedClock())).damaged == ()


async def test_it_is_mended_by_an_id_of_its_own() -> None:
    disk = instant_disk()
    await journal_with_an_id_given_twice(disk)
    found = await survey_all(disk, DIRECTORY, tells_apart=True)
    (earlier,) = found.contents.earlier or ()
    before = {name: disk.contents(f"{DIRECTORY}/{name}") for name in await logs(disk)}
    clock = SimulatedClock()
    relabels = [Relabel(SHARED, earlier.until, FRESH)]
    copies = await relabel(disk, DIRECTORY, found.files, relabels, clock)
    assert copies
    for copy in copies:
        name = copy.rpartition("/")[2].rpartition(".")[0]
        assert copy.startswith(f"{DIRECTORY}/{QUARANTINE_DIRECTORY}/")
        assert disk.contents(copy) == before[name], "the untouched file is kept"
        assert len(disk.contents(f"{DIRECTORY}/{name}")) == len(before[name])
    assert index_name(found.files[0].start) not in await disk.list_names(DIRECTORY)
    # Once more changes nothing: a crash may have come at any point of the first time.
    assert await relabel(disk, DIRECTORY, found.files, relabels, clock) == []
    async with broker_on(disk, identity="GOLDEN/1") as broker:
        broker.storage.keep_only({SHARED, OTHER, FRESH}, set[SubscriptionId]())
        assert await read_messages(broker, FRESH) == list(enumerate([RICH, PLAIN, RICH, PLAIN]))
        assert await read_messages(broker, SHARED) == list(enumerate([PLAIN, PLAIN]))
        assert await read_messages(broker, OTHER) == list(enumerate([PLAIN, RICH, PLAIN]))
        assert broker.storage.topic(FRESH).next_offset == Offset(4)


async def logs(disk: SimulatedDisk) -> list[str]:
    return [name for name in await disk.list_names(DIRECTORY) if name.endswith(".log")]
