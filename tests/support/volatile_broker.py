"""`danube` on files that keep what was appended in memory until it is synced.

    python -m tests.support.volatile_broker [OPTION] broker ...

A process that is killed leaves its writes to the operating system, which keeps them; so a kill
alone never shows a missing sync. Here it does: what was not synced dies with the process, as it
would with the machine. The options plant a bug each, for the tests that must find it.
"""

import os
import sys
from collections.abc import Sequence

from typing_extensions import override

from pydanube.cli.main import danube
from pydanube.runtime import system_files
from pydanube.runtime.system_files import SystemAppendFile
from pydanube.runtime.threads import WorkerThreads
from pydanube.subscriptions.cursor import Cursor, Done

WITHOUT_SYNC = "--without-sync"
WITHOUT_LONG_SYNCS = "--without-long-syncs"
UNSYNCED_JOURNAL = "--unsynced-journal"
EARLY_ACKS = "--early-acks"

_WRITTEN_BACK_BYTES = 64 * 1024
_LONG_WRITTEN_BACK_BYTES = 8 * 1024 * 1024
"""So much the broker without sync gathers before it reaches the file, as by an idle kernel."""


class VolatileAppendFile(SystemAppendFile):
    """Writes when it is synced, and not before."""

    def __init__(self, descriptor: int, path: str, thread: WorkerThreads) -> None:
        super().__init__(descriptor, path, thread)
        self._unsynced: list[bytes] = []

    @override
    async def append(self, parts: Sequence[bytes]) -> None:
        self._unsynced += parts

    @override
    async def sync(self) -> None:
        parts, self._unsynced = self._unsynced, []
        await super().append_and_sync(parts)

    @override
    async def append_and_sync(self, parts: Sequence[bytes]) -> None:
        await self.append(parts)
        await self.sync()

    @override
    async def close(self) -> None:
        if self._unsynced:
            await super().append(self._unsynced)
        await super().close()


class UnsyncedJournalFile(VolatileAppendFile):
    """Takes every sync of the journal for done; other files are as they should be."""

    written_back_bytes = _WRITTEN_BACK_BYTES

    @override
    async def sync(self) -> None:
        gathered = sum(map(len, self._unsynced))
        if "/wal/" not in self._path or gathered >= self.written_back_bytes:
            await super().sync()


class LongUnsyncedJournalFile(UnsyncedJournalFile):
    """The same for batches of megabytes."""

    written_back_bytes = _LONG_WRITTEN_BACK_BYTES


def _answer_at_once(cursor: Cursor, done: Done) -> None:
    done(None)


def _sync_all_but_the_journal(descriptor: int) -> None:
    if "/wal/" not in os.readlink(f"/proc/self/fd/{descriptor}"):
        os.fdatasync(descriptor)


def main(arguments: list[str]) -> None:
    """Run `danube` with these arguments on such files."""
    files: type[SystemAppendFile] = VolatileAppendFile
    for option, planted in (
        (WITHOUT_SYNC, UnsyncedJournalFile),
        (WITHOUT_LONG_SYNCS, LongUnsyncedJournalFile),
    ):
        if option in arguments:
            arguments.remove(option)
            files = planted
    if UNSYNCED_JOURNAL in arguments:
        arguments.remove(UNSYNCED_JOURNAL)
        files = SystemAppendFile
        system_files._sync_data = _sync_all_but_the_journal
    if EARLY_ACKS in arguments:
        arguments.remove(EARLY_ACKS)
        Cursor.when_durable = _answer_at_once  # type: ignore[method-assign]
    system_files.SystemAppendFile = files  # type: ignore[misc]
    danube(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
