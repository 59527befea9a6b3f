"""Writes the end of a journal again, so that it is durable whatever happened before.

When a sync fails, the operating system may go on showing bytes that never reach the disk, and call
the next sync a success. After a restart nobody knows whether that happened, so what no frame proves
to be synced is written anew before it is shown to anyone.
"""

import re

from pydanube.errors import Corruption
from pydanube.model.ids import JournalPosition
from pydanube.runtime.files import Files, read_whole, write_atomically
from pydanube.storage.frames import FrameScan, Stop
from pydanube.storage.journal.contents import JournalFile
from pydanube.storage.journal.survey import list_journal

_REWRITE_NAME = re.compile(r"journal-(\d{20})\.rewrite", re.ASCII)


async def rewrite_tail(
    files: Files, directory: str, newest: JournalFile, synced: JournalPosition
) -> None:
    """Write the newest file's bytes from `synced` on again; a crash never loses them."""
    path = f"{directory}/{newest.name}"
    tail = await files.read(path, synced - newest.start, newest.end - synced)
    # First the file's own name: a copy must never survive without it.
    await files.sync_directory(directory)
    # Then the copy: it is durable before the original is cut.
    await write_atomically(files, directory, f"journal-{synced:020}.rewrite", tail)
    await finish_rewrite(files, directory)


async def finish_rewrite(files: Files, directory: str) -> None:
    """Carry out a rewrite that is prepared, or was interrupted at any point."""
    for name in await files.list_names(directory):
        match = _REWRITE_NAME.fullmatch(name)
        if match is not None:
            await _put_back(files, directory, name, JournalPosition(int(match[1])))


async def _put_back(files: Files, directory: str, name: str, synced: JournalPosition) -> None:
    tail = await read_whole(files, f"{directory}/{name}")
    scan = FrameScan(tail, synced)
    listing = await list_journal(files, directory)
    if not any(scan) or scan.stop is not Stop.END or not listing or synced > listing[-1].end:
        raise Corruption(
            f"{directory}/{name} is damaged; it holds the journal's last records from position "
            f"{synced} on. Nothing was changed: restore the directory from a copy, or move this "
            "file elsewhere if those records may be lost"
        )
    newest = f"{directory}/{listing[-1].name}"
    # A process that was killed may have left the copy's name not durable yet.
    await files.sync_directory(directory)
    await files.truncate(newest, synced - listing[-1].start)
    file = await files.open_append(newest)
    try:
        await file.append_and_sync([tail])
    finally:
        await file.close()
    # Durable before anything is appended: put back once more, it would cut that off.
    await files.remove(f"{directory}/{name}")
    await files.sync_directory(directory)
