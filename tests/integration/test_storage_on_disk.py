"""The storage on the machine's own file system."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pydanube.errors import Conflict
from pydanube.model.ids import Offset, SubscriptionId
from pydanube.model.progress import Progress, ProgressChange
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.system_files import SystemFiles
from pydanube.storage.errors import JournalDamaged
from pydanube.storage.journal.quarantine import quarantine
from tests.support import journals
from tests.support.journals import Broker, broker_on, rotating_at


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SystemFiles]:
    monkeypatch.setattr(journals, "DIRECTORY", str(tmp_path / "journal"))
    files = SystemFiles()
    yield files
    files.stop()


async def test_messages_and_progress_survive_on_real_files(files: SystemFiles) -> None:
    expected = {}
    async with broker_on(files, rotating_at(200_000)) as broker:
        await broker.create_subscription(7, 0)
        for number in range(60):
            payload = b"%d " % number * 3000
            expected[await broker.append(1, payload)] = payload
        await broker.begin_settle(7, ProgressChange(settled=((0, 5),)))
        with pytest.raises(Conflict):
            await Broker.start(files)
    async with broker_on(files, rotating_at(200_000)) as broker:
        assert await broker.read_all(1) == expected
        assert broker.storage.progress(SubscriptionId(7)) == Progress(Offset(5))
        assert await broker.append(1, b"next") == 60


async def test_a_damaged_journal_is_refused_and_given_up_on_real_files(
    files: SystemFiles, tmp_path: Path
) -> None:
    async with broker_on(files) as broker:
        for number in range(3):
            await broker.append(1, b"%d" % number)
    (log,) = (tmp_path / "journal").glob("*.log")
    damaged = bytearray(log.read_bytes())
    damaged[1500] ^= 1
    log.write_bytes(damaged)
    with pytest.raises(JournalDamaged):
        await Broker.start(files)
    assert log.read_bytes() == damaged
    report = await quarantine(files, str(tmp_path / "journal"), SystemClock())
    assert Path(report.copies[0]).read_bytes() == damaged
    async with broker_on(files) as broker:
        assert await broker.read_all(1) == {0: b"0", 2: b"2"}
