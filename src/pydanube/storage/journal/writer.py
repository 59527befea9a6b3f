"""Makes records durable: one writer for the whole broker, and one sync for all that wait."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from typing_extensions import override

from pydanube.errors import DanubeError, InvalidRequest, Overloaded, Unavailable
from pydanube.model.ids import JournalPosition
from pydanube.model.policies import Durability
from pydanube.observability.counts import JournalMetrics
from pydanube.observability.logging import Logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.files import AppendFile, Files, NoRoom
from pydanube.runtime.mended_file import MendedFile
from pydanube.runtime.room import Room, WaitEnded
from pydanube.runtime.tasks import call_soon
from pydanube.storage.frames import (
    PAYLOAD_BYTES_MAX,
    PREFIX_BYTES,
    FrameScan,
    Stop,
    encode_frame,
)
from pydanube.storage.journal.contents import JournalContents, JournalFile, log_name
from pydanube.storage.journal.records import (
    FileHeader,
    Kind,
    Snapshot,
    encode_prologue,
)

_log = Logger(__name__)

# Encoding a group keeps the event loop busy; this much takes some milliseconds.
_GROUP_BYTES_MAX = 8 * 1024 * 1024


class Entry:
    """One record on its way into the journal. Each method is called once, on the event loop."""

    __slots__ = ("durability", "flags", "kind", "parts", "size", "told")

    def __init__(
        self,
        kind: Kind,
        parts: Sequence[bytes | memoryview],
        *,
        flags: int = 0,
        durability: Durability,
    ) -> None:
        self.kind = kind
        self.flags = flags
        self.parts = parts
        self.size = PREFIX_BYTES + sum(map(len, parts))
        self.durability = durability
        self.told = False

    def placed(self, position: JournalPosition, file: JournalFile) -> None:
        """Its frame is about to be written there; it is not durable yet."""

    def finished(self, error: DanubeError | None) -> None:
        """It is as durable as it wanted to be, or it never will be."""


class _Barrier(Entry):
    """Nothing to write: waits for everything queued before it."""

    __slots__ = ("passed",)

    def __init__(self) -> None:
        super().__init__(Kind.CLOSED, (), durability="fsync")
        self.size = 0
        self.passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @override
    def finished(self, error: DanubeError | None) -> None:
        if self.passed.done():
            return
        if error is None:
            self.passed.set_result(None)
        else:
            self.passed.set_exception(Unavailable(str(error)))


async def begin_file(
    files: Files, directory: str, start: JournalPosition, header: FileHeader, snapshot: Snapshot
) -> tuple[JournalFile, AppendFile]:
    """Create the journal file that starts there, durable with its prologue before it is used.

    After NoRoom nothing is left of it, and it may be begun again.
    """
    parts: list[bytes] = []
    end: int = start
    for kind, flags, payload in encode_prologue(header, snapshot):
        frame = encode_frame(kind, end, start, [payload], flags=flags)
        end += sum(map(len, frame))
        parts += frame
    path = f"{directory}/{log_name(start)}"
    handle = await files.create(path)
    try:
        await handle.append_and_sync(parts)
        await files.sync_directory(directory)
    except NoRoom:
        await handle.close()
        await files.remove(path)
        raise
    except BaseException:
        await handle.close()
        raise
    return (
        JournalFile(start=start, end=JournalPosition(end), topics=set(), prologue_whole=True),
        handle,
    )


class JournalWriter:
    """Appends records in the order they are queued, gathered into groups.

    While one group is written and synced, the next one gathers. A failed write or sync stops the
    journal for good: nobody knows then which bytes reached the disk, so everything that waits and
    everything later is refused, nothing is tried again, and only recovery may decide what the
    journal holds.

    Where there is no room, for a new file or behind the end of this one, nothing has failed yet:
    what was taken in waits, and what comes is refused, until there is. Then the same bytes are
    written to the same place (docs/decisions/0048-room.md).
    """

    def __init__(
        self,
        files: Files,
        clock: Clock,
        directory: str,
        *,
        header: FileHeader,
        contents: JournalContents,
        journal_files: list[JournalFile],
        handle: AppendFile,
        file_bytes_max: int,
        file_ms_max: int | None,
        unsynced_bytes_max: int,
        direct_bytes_min: int | None,
        on_rotated: Callable[[JournalFile], None],
        on_synced: Callable[[JournalPosition], None],
        on_failure: Callable[[DanubeError], None],
        metrics: JournalMetrics,
    ) -> None:
        self._files = files
        self._clock = clock
        self._directory = directory
        self._header = header
        self._contents = contents
        self._journal_files = journal_files
        self._group_start = journal_files[-1].end
        """Where the latest group of the file being written begins, or its prologue."""
        self._handle = self._mended(handle, journal_files[-1])
        self._room = Room(clock, self._wait_began, self._wait_ended)
        self._file_bytes_max = file_bytes_max
        self._file_ms_max = file_ms_max
        self._begun_ms = clock.monotonic_ms()
        self._unsynced_bytes_max = unsynced_bytes_max
        self._direct_bytes_min = direct_bytes_min
        self._on_rotated = on_rotated
        self._on_synced = on_synced
        self._on_failure = on_failure
        self._metrics = metrics
        self._queue: deque[Entry] = deque()
        self._group: list[Entry] = []
        self._wakeup = asyncio.Event()
        self._ended = asyncio.Event()
        self._running = False
        self._closing = False
        self.written = self.durable = journal_files[-1].end
        self.unsynced_bytes = 0
        self.failure: DanubeError | None = None
        self.writing_since_ms: int | None = None
        """Since when the group that is being written is under way; None while none is."""

    def queue(self, entry: Entry, *, reserve_bytes: int = 0) -> None:
        """Take a record in, or raise Overloaded or Unavailable and forget it.

        `reserve_bytes` is how far beyond the limit of unsynced bytes this record may go.
        """
        self.check(entry.size, reserve_bytes=reserve_bytes)
        if entry.size > PREFIX_BYTES + PAYLOAD_BYTES_MAX:
            raise InvalidRequest(
                f"a record of {entry.size} bytes exceeds the journal's limit of "
                f"{PAYLOAD_BYTES_MAX} bytes; send smaller batches"
            )
        self.unsynced_bytes += entry.size
        self._queue.append(entry)
        self._wakeup.set()
        if entry.durability == "memory":
            entry.told = True
            call_soon(lambda: entry.finished(None))

    def check(self, size: int, *, reserve_bytes: int = 0) -> None:
        """Raise Overloaded or Unavailable if so many bytes would not be taken in now."""
        if self.failure is not None:
            raise Unavailable(str(self.failure))
        if self._closing:
            raise Unavailable("the journal is closed; the broker is stopping")
        if self._room.waiting_for is not None and not reserve_bytes:
            raise Overloaded(f"{self.waiting_for}; repeat in a moment")
        unsynced = self.unsynced_bytes + size
        if unsynced > self._unsynced_bytes_max + reserve_bytes and self.unsynced_bytes:
            raise Overloaded(
                f"{self.unsynced_bytes} bytes wait for the disk, the limit is "
                f"{self._unsynced_bytes_max} (storage.unsynced_bytes_max); repeat in a moment"
            )

    async def run(self) -> None:
        """Write what is queued until closed or cancelled, or until a write fails."""
        self._running = True
        try:
            while self._queue or not self._closing:
                if self._queue:
                    self.writing_since_ms = self._clock.monotonic_ms()
                    await self._commit()
                    self.writing_since_ms = None
                else:
                    self._wakeup.clear()
                    await self._wakeup.wait()
            self.writing_since_ms = self._clock.monotonic_ms()
            await self._write_closed()
        except WaitEnded as error:
            self.failure = Unavailable(
                f"the journal in {self._directory} was closed while it waited: {error}"
            )
        except (OSError, MemoryError) as error:
            self._stop(error)
        finally:
            self.writing_since_ms = None
            if self.failure is None:
                self.failure = Unavailable("the journal is closed; the broker is stopping")
            self._tell_all(self.failure)
            self._ended.set()

    @property
    def waiting_for(self) -> str | None:
        """What the journal has no room for, in a sentence with the remedy; None while it has."""
        waiting_for = self._room.waiting_for
        if waiting_for is None:
            return None
        return f"the journal in {self._directory} waits for room: {waiting_for}"

    async def flush(self) -> None:
        """Wait until everything queued so far is synced; raise Unavailable if it will not be.

        Raises Unavailable, too, when that cannot be told, for the journal waits for room.
        """
        if self.waiting_for is not None:
            raise Unavailable(self.waiting_for)
        barrier = _Barrier()
        self.queue(barrier)
        await barrier.passed

    async def close(self) -> None:
        """Write what is queued and a CLOSED record, unless the journal has failed."""
        self._closing = True
        self._wakeup.set()
        self._room.end()
        if self._running:
            await self._ended.wait()
        await self._handle.close()

    async def _commit(self) -> None:
        reason = self._rotation_due()
        if reason is not None:
            await self._rotate(reason)
        self._take_group()
        active = self._journal_files[-1]
        parts, end = self._encode_group(active)
        started = self._clock.monotonic_seconds()
        if any(entry.durability == "os" for entry in self._group):
            await self._room.carry_out(lambda: self._handle.append(parts))
            self.written = end
            self._tell(None, "os")
            await self._handle.sync()
        elif parts:
            await self._room.carry_out(lambda: self._handle.append_and_sync(parts))
        if parts:
            self._group_start = active.end
            seconds = self._clock.monotonic_seconds() - started
            self._metrics.synced(seconds, len(self._group), end - active.end)
        active.end = self.written = self.durable = end
        # Told while still in the group, so that none is forgotten should a callback fail.
        self._tell(None, "fsync")
        self.unsynced_bytes -= sum(entry.size for entry in self._group)
        self._group = []
        self._on_synced(end)

    def _take_group(self) -> None:
        size = 0
        while self._queue and size < _GROUP_BYTES_MAX:
            entry = self._queue.popleft()
            self._group.append(entry)
            size += entry.size

    def _encode_group(
        self, active: JournalFile
    ) -> tuple[list[bytes | memoryview], JournalPosition]:
        parts: list[bytes | memoryview] = []
        group_start = position = active.end
        for entry in self._group:
            if not entry.parts:
                continue
            padding = self._padding_before(entry, position - active.start)
            if padding is not None:
                parts += encode_frame(Kind.PADDING, position, group_start, [bytes(padding)])
                position = JournalPosition(position + PREFIX_BYTES + padding)
            entry.placed(position, active)
            parts += encode_frame(entry.kind, position, group_start, entry.parts, flags=entry.flags)
            position = JournalPosition(position + entry.size)
        return parts, position

    def _padding_before(self, entry: Entry, place: int) -> int | None:
        """Return the payload of a PADDING frame at `place` that spares the entry a copy."""
        body = entry.parts[-1]
        if self._direct_bytes_min is None or len(body) < self._direct_bytes_min:
            return None
        body_at = place + entry.size - len(body)
        if not self._handle.padding_before(body, body_at):
            return None
        return self._handle.padding_before(body, body_at + PREFIX_BYTES)

    def _rotation_due(self) -> str | None:
        active = self._journal_files[-1]
        if active.end - active.start >= self._file_bytes_max:
            return "size"
        age_ms = self._clock.monotonic_ms() - self._begun_ms
        return "time" if self._file_ms_max is not None and age_ms >= self._file_ms_max else None

    async def _rotate(self, reason: str) -> None:
        finished = self._journal_files[-1]
        header = msgspec.structs.replace(self._header, created_ms=self._clock.now_ms())
        snapshot = self._contents.snapshot()
        file, handle = await self._room.carry_out(
            lambda: begin_file(self._files, self._directory, finished.end, header, snapshot)
        )
        old, self._handle = self._handle, self._mended(handle, file)
        self._group_start = file.start
        self._journal_files.append(file)
        self._begun_ms = self._clock.monotonic_ms()
        self.written = self.durable = file.end
        self._metrics.rotated(reason)
        self._on_rotated(finished)
        await old.close()

    async def _write_closed(self) -> None:
        active = self._journal_files[-1]
        parts = encode_frame(Kind.CLOSED, active.end, active.end, [])
        with suppress(NoRoom):  # The mark only spares the next start some work.
            await self._handle.append_and_sync(parts)
            active.end = self.written = self.durable = JournalPosition(active.end + PREFIX_BYTES)

    def _mended(self, handle: AppendFile, file: JournalFile) -> MendedFile:
        path = f"{self._directory}/{file.name}"

        async def ends_well() -> bool:
            data = await self._files.read(
                path, self._group_start - file.start, file.end - self._group_start
            )
            scan = FrameScan(data, self._group_start)
            whole = all(frame.end <= len(data) for frame in scan)
            return whole and scan.stop is Stop.END and len(data) == file.end - self._group_start

        return MendedFile(self._files, path, handle, lambda: file.end - file.start, ends_well)

    def _wait_began(self, lacking: str) -> None:
        _log.warning(
            "the journal waits for room and refuses messages until there is some",
            directory=self._directory,
            cause=lacking,
        )
        # Who waits for a flush may wait for long now, and nothing of theirs is at stake.
        waiting = Unavailable(f"the journal in {self._directory} waits for room: {lacking}")
        for barrier in (*self._group, *self._queue):
            if isinstance(barrier, _Barrier):
                barrier.finished(waiting)

    def _wait_ended(self, waited_ms: int) -> None:
        _log.info("the journal has room again", directory=self._directory, waited_ms=waited_ms)

    def _stop(self, error: OSError | MemoryError) -> None:
        self.failure = Unavailable(
            f"the journal in {self._directory} stopped after a failed write: {error}. "
            "Reliable topics of this broker accept nothing until it is restarted; see to the disk "
            "and its free space, then restart the broker: recovery decides what the journal holds"
        )
        self._tell_all(self.failure)
        self._on_failure(self.failure)

    def _tell_all(self, error: DanubeError | None) -> None:
        self._group += self._queue
        self._queue.clear()
        self._tell(error, "fsync")

    def _tell(self, error: DanubeError | None, reached: Durability) -> None:
        for entry in self._group:
            if not entry.told and (reached == "fsync" or entry.durability == reached):
                entry.told = True
                entry.finished(error)
