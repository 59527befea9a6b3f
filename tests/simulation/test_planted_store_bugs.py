"""The worlds of whole Raft stores are worth something: they notice each of these bugs."""

from collections.abc import Callable, Sequence

import pytest

from pydanube.metadata.forwarding import Forwarding
from pydanube.metadata.raft.entries import HardState, LogEntry, Snapshot, Stored
from pydanube.metadata.raft_disk import RaftDisk
from pydanube.metadata.raft_format import encode_group
from pydanube.runtime.simulation.loop import run_simulated
from tests.simulation.test_raft_stores import live

pytestmark = pytest.mark.slow

SEEDS_MAX = 60
Plant = Callable[[pytest.MonkeyPatch], None]


def the_log_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    async def write(
        self: RaftDisk, hard_state: HardState | None, entries: Sequence[LogEntry]
    ) -> None:
        assert self._file is not None
        parts = encode_group(hard_state, entries, self._end)
        await self._file.append(parts)
        self._end += sum(map(len, parts))

    patch.setattr(RaftDisk, "write", write)


def a_snapshot_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    written: dict[RaftDisk, int] = {}
    write_snapshot = RaftDisk.write_snapshot

    async def forget(self: RaftDisk, snapshot: Snapshot) -> None:
        written[self] = written.get(self, 0) + 1
        if written[self] == 1:
            await write_snapshot(self, snapshot)

    patch.setattr(RaftDisk, "write_snapshot", forget)


def a_new_log_forgets_the_vote(patch: pytest.MonkeyPatch) -> None:
    begin_log = RaftDisk.begin_log

    async def forget(self: RaftDisk, stored: Stored) -> None:
        blank = Stored(
            HardState(0), stored.snapshot, stored.base_index, stored.base_term, stored.entries
        )
        await begin_log(self, blank)

    patch.setattr(RaftDisk, "begin_log", forget)


def reads_ask_nobody(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: Forwarding) -> None:
        return None

    patch.setattr(Forwarding, "read_barrier", at_once)


@pytest.mark.parametrize(
    "plant",
    [
        the_log_is_not_synced,
        a_snapshot_is_not_stored,
        a_new_log_forgets_the_vote,
        reads_ask_nobody,
    ],
)
def test_the_worlds_find_that(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            run_simulated(live, seed, steps_max=300_000)
        except Exception as found:  # A law, a refusal to start, or a world that never ends.
            print(f"seed {seed}: {type(found).__name__} {str(found)[:100]}")
            return
    pytest.fail(f"{SEEDS_MAX} worlds have not noticed it")
