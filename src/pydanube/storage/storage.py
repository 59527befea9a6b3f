"""A broker's whole storage: the journal, the cache before it, and the segments behind it."""

from collections.abc import Callable, Iterable, Set

import xxhash
from typing_extensions import override

from pydanube.errors import Conflict, DanubeError, NotFound, Unavailable
from pydanube.model.ids import JournalPosition, Offset, SubscriptionId, TopicId
from pydanube.model.progress import Progress, ProgressChange
from pydanube.observability.counts import JournalMetrics
from pydanube.runtime.clock import Clock
from pydanube.runtime.files import AppendFile, FileLock, Files
from pydanube.runtime.room import describe
from pydanube.runtime.tasks import TaskScope, call_soon
from pydanube.storage.config import MIB, LocalRetention, StorageConfig
from pydanube.storage.errors import ways_apart
from pydanube.storage.journal.comparison import Compared, Reach, compare, first_needed
from pydanube.storage.journal.contents import JournalFile, TopicIndex
from pydanube.storage.journal.file_cache import FileCache
from pydanube.storage.journal.housekeeping import Housekeeping
from pydanube.storage.journal.knowing import Knowing
from pydanube.storage.journal.producers import LastBatch, encode_producers
from pydanube.storage.journal.progress import FoldedProgress
from pydanube.storage.journal.reader import JournalReader
from pydanube.storage.journal.records import (
    WHOLE_PROGRESS,
    FileHeader,
    Kind,
    Owned,
    encode_owned,
    encode_progress,
)
from pydanube.storage.journal.recovery import LOCK_NAME, Recovered, recover
from pydanube.storage.journal.retention import Keeping
from pydanube.storage.journal.space import JournalSpace
from pydanube.storage.journal.writer import Entry, JournalWriter, begin_file
from pydanube.storage.mirrors.mirror_logs import MirrorLogs
from pydanube.storage.mirrors.stream import TopicStream
from pydanube.storage.segments.encoding import SegmentOrigin
from pydanube.storage.segments.leftovers import Journaled
from pydanube.storage.segments.tail_export import Batches
from pydanube.storage.segments.tier import SegmentPlace, SegmentTier
from pydanube.storage.segments.topic_segments import Retention
from pydanube.storage.tail_cache import TailCache
from pydanube.storage.tiered_reader import History
from pydanube.storage.topic_log import Done, TopicLog

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000
# Acks must get through when publishes are refused already: they are few, and consumers wait.
_PROGRESS_RESERVE_BYTES = 16 * 1024 * 1024


class _ProgressEntry(Entry):
    """A change of one subscription's progress on its way into the journal."""

    __slots__ = ("done", "number", "stream")

    def __init__(self, payload: bytes, flags: int, done: Done) -> None:
        super().__init__(Kind.PROGRESS, (payload,), flags=flags, durability="fsync")
        self.done = done
        self.stream: TopicStream | None = None
        self.number = 0

    @override
    def finished(self, error: DanubeError | None) -> None:
        if self.stream is None or error is not None:
            self.done(error)
        else:
            self.stream.synced(self.number)
            self.stream.when_acknowledged(self.number, self.done)


class _TakeOver(Entry):
    """The beginning of an ownership on its way into the journal."""

    __slots__ = ("done", "index")

    def __init__(self, owned: Owned, index: TopicIndex, done: Done) -> None:
        super().__init__(Kind.OWNED, tuple(encode_owned([owned])), durability="fsync")
        self.index = index
        self.done = done

    @override
    def placed(self, position: JournalPosition, file: JournalFile) -> None:
        self.index.owned_at = position

    @override
    def finished(self, error: DanubeError | None) -> None:
        self.done(error)


class Storage:
    """The bytes of one broker. One owner opens, uses and closes it, on one event loop.

    After a failed write `failure` says why and nothing is accepted any more; what was durable
    stays readable. `on_failure` is called at that moment.
    """

    def __init__(
        self,
        files: Files,
        clock: Clock,
        tasks: TaskScope,
        config: StorageConfig,
        directory: str,
        *,
        lock: FileLock,
        header: FileHeader,
        recovered: Recovered,
        handle: AppendFile,
        metrics: JournalMetrics,
        place: SegmentPlace | None,
    ) -> None:
        self.on_failure: Callable[[DanubeError], None] = lambda error: None
        self._clock = clock
        self._lock = lock
        self._contents = recovered.contents
        self._housekeeping = Housekeeping(
            files,
            clock,
            tasks,
            directory,
            recovered.files,
            recovered.contents,
            _keeping(config.local_retention),
            metrics,
        )
        self._reader = JournalReader(files, directory, recovered.files)
        self._file_cache = FileCache(
            files, tasks, directory, recovered.files, config.journal_cache_bytes_max
        )
        self._writer = self._open_writer(
            files,
            config,
            directory,
            header=header,
            recovered=recovered,
            handle=handle,
            metrics=metrics,
        )
        self._cache = TailCache(config.tail_cache_bytes_max)
        known, topics = recovered.contents.known, recovered.contents.topics
        self.is_new = not known.revision and not topics
        """The journal has never been told of any topic."""
        self.knowing = Knowing(recovered.contents.known, self._writer)
        self._topics: dict[TopicId, TopicLog] = {}
        self._streams: dict[TopicId, TopicStream] = {}
        self._topic_of: dict[SubscriptionId, TopicId] = {}
        self._subscriptions_of: dict[TopicId, set[SubscriptionId]] = {}
        self.mirrors = MirrorLogs(
            self._contents,
            self._writer,
            self._reader,
            self._fence_log,
            self._housekeeping.look_around,
        )
        self._tier: SegmentTier | None = None
        self._space: JournalSpace | None = None
        if place is not None:
            self._add_segments(place, config, tasks)

    def _open_writer(
        self,
        files: Files,
        config: StorageConfig,
        directory: str,
        *,
        header: FileHeader,
        recovered: Recovered,
        handle: AppendFile,
        metrics: JournalMetrics,
    ) -> JournalWriter:
        rotation = config.wal.rotation
        return JournalWriter(
            files,
            self._clock,
            directory,
            header=header,
            contents=recovered.contents,
            journal_files=recovered.files,
            handle=handle,
            file_bytes_max=rotation.max_bytes,
            file_ms_max=None if rotation.max_hours is None else rotation.max_hours * _HOUR_MS,
            unsynced_bytes_max=config.unsynced_bytes_max,
            direct_bytes_min=config.journal_direct_bytes_min,
            on_rotated=self._rotated,
            on_synced=self._file_cache.synced,
            on_failure=lambda error: self.on_failure(error),
            metrics=metrics,
        )

    def _add_segments(self, place: SegmentPlace, config: StorageConfig, tasks: TaskScope) -> None:
        """Let the journal be exported, and refuse messages while it cannot be and is full."""
        space = self._space = JournalSpace(
            self._housekeeping,
            config.local_retention.size_mb * MIB,
            config.wal.rotation.max_bytes,
        )
        self._tier = SegmentTier(
            place,
            config,
            self._clock,
            short_of_space=lambda: space.is_short,
            journaled=self._journaled,
            on_failure=tasks.report,
            after_round=self._housekeeping.look_around,
        )

    @classmethod
    async def open(
        cls,
        files: Files,
        clock: Clock,
        tasks: TaskScope,
        config: StorageConfig,
        directory: str,
        *,
        identity: str = "",
        metrics: JournalMetrics | None = None,
        segments: SegmentPlace | None = None,
    ) -> "Storage":
        """Recover the journal in a directory, or begin one; `identity` names cluster and broker.

        Without `segments` everything stays in the journal. Raises Corruption when it is damaged,
        InvalidRequest when it is another broker's or of a later version, or the segment store needs
        an operator, Conflict while another process uses it, Unavailable when the disk fails. Then
        nothing was lost that was not lost before.
        """
        try:
            await files.make_directory(directory)
            lock = await files.lock(f"{directory}/{LOCK_NAME}")
        except OSError as error:
            raise _cannot_open(directory, error) from error
        if lock is None:
            raise Conflict(
                f"the journal in {directory} is in use by another process. If that is another "
                f"broker, {ways_apart(directory)}; else stop it first"
            )
        try:
            storage = await cls._open_locked(
                files,
                clock,
                tasks,
                config,
                directory,
                identity=identity,
                lock=lock,
                metrics=metrics or JournalMetrics(),
                place=segments,
            )
        except OSError as error:
            await lock.release()
            raise _cannot_open(directory, error) from error
        except BaseException:
            await lock.release()
            raise
        return storage

    @classmethod
    async def _open_locked(
        cls,
        files: Files,
        clock: Clock,
        tasks: TaskScope,
        config: StorageConfig,
        directory: str,
        *,
        identity: str,
        lock: FileLock,
        metrics: JournalMetrics,
        place: SegmentPlace | None,
    ) -> "Storage":
        recovered = await recover(files, directory, identity)
        header = recovered.contents.header or _new_header(directory, identity, clock.now_ms())
        if recovered.files:
            handle = await files.open_append(f"{directory}/{recovered.files[-1].name}")
        else:
            first, handle = await begin_file(
                files, directory, JournalPosition(0), header, recovered.contents.snapshot()
            )
            recovered.files.append(first)
        storage = cls(
            files,
            clock,
            tasks,
            config,
            directory,
            lock=lock,
            header=header,
            recovered=recovered,
            handle=handle,
            metrics=metrics,
            place=place,
        )
        for finished in recovered.files[:-1]:
            # At the latest: the newest file's header tells when it was begun.
            finished.finished_ms = header.created_ms
        if storage._tier is not None:
            try:
                await storage._tier.probe()
            except BaseException:
                await storage._tier.stop()
                await handle.close()
                raise
            storage._tier.start()
        tasks.start(storage._writer.run(), "journal writer")
        return storage

    @property
    def failure(self) -> DanubeError | None:
        """Why the journal has stopped; None while it works."""
        return self._writer.failure

    @property
    def writing_since_ms(self) -> int | None:
        """Since when the journal is busy with one group; None while it is idle."""
        return self._writer.writing_since_ms

    @property
    def waiting_for(self) -> str | None:
        """What the journal has no room for, and the remedy; None while it has.

        It has not stopped: it refuses messages, and goes on by itself once there is room.
        """
        return self._writer.waiting_for

    @property
    def unsynced_bytes(self) -> int:
        """How much waits for the disk."""
        return self._writer.unsynced_bytes

    @property
    def durable_position(self) -> JournalPosition:
        """Up to where the journal is synced."""
        return self._writer.durable

    def compare(
        self, topics: Set[TopicId], subscriptions: Set[SubscriptionId], reach: Reach
    ) -> Compared:
        """Tell what the journal has and the metadata have not; nothing is changed."""
        self._contents.known.saw(self._contents.topics, self._contents.progress)
        return compare(self._contents, topics, subscriptions, reach)

    @property
    def ids_given(self) -> tuple[TopicId, SubscriptionId]:
        """The highest ids that the journal has ever held, of a topic and of a subscription."""
        known = self._contents.known
        return TopicId(known.topic_id_max), SubscriptionId(known.subscription_id_max)

    def first_needed(self) -> dict[TopicId, Offset]:
        """Return below which offset the journal holds nothing of each of its own topics."""
        return {
            topic_id: first_needed(index)
            for topic_id, index in self._contents.topics.items()
            if index.copy is None
        }

    def keep_only(self, topics: Set[TopicId], subscriptions: Set[SubscriptionId]) -> None:
        """Forget all topics and subscriptions but these: to be called once they are known."""
        self._contents.keep_only(topics, subscriptions)
        for topic_id in self._topics.keys() - topics:
            self._topics.pop(topic_id).drop()
        self._housekeeping.look_around()

    def topic(
        self,
        topic_id: TopicId,
        name: str | None = None,
        *,
        epoch: int = 0,
        retention: Retention | None = None,
    ) -> TopicLog:
        """Return a topic's log; one that was never appended to is empty.

        Whoever asks first gives the name, if the topic shall have segments, and the epoch under
        which it is owned. `retention` is asked from time to time how long they stay.
        """
        log = self._topics.get(topic_id)
        if log is None:
            index = self._contents.topics.get(topic_id)
            if index is not None and index.copy is not None:
                raise Conflict(
                    f"topic {name or topic_id} is mirrored here and served elsewhere; it is taken "
                    "over before it is served"
                )
            history = None
            if self._tier is not None and name is not None:
                segments = self._tier.topic(topic_id, name, epoch, retention)
                tier = self._tier
                history = History(segments, tier.reader, tier.compaction, tier.metrics)
            log = self._topics[topic_id] = TopicLog(
                topic_id,
                self._contents.topic(topic_id),
                self._cache.tail(),
                self._writer,
                self._reader,
                self._clock,
                history,
                self._space if history is not None else None,
            )
            if self._tier is not None and history is not None:
                log.exports_to(self._tier.exporter.register(log, history.segments))
        return log

    def _journaled(self, topic_id: TopicId) -> Journaled:
        index = self._contents.topics.get(topic_id)
        if index is None or index.copy is not None or not index.bases:
            return Journaled(Offset(0), Offset(0))
        return Journaled(index.first_offset, Offset(index.end))

    # Topics that change hands.

    def epoch_of(self, topic_id: TopicId) -> int:
        """Return under which ownership of this broker the journal holds a topic; 0 if under none.

        A topic of which the journal is a mirror is another broker's.
        """
        index = self._contents.topics.get(topic_id)
        return index.epoch if index is not None and index.copy is None else 0

    def journaled_end(self, topic_id: TopicId) -> Offset:
        """Return behind which offset the journal holds nothing of a topic; 0 if it has nothing.

        As with `epoch_of`, a copy of another broker's topic is nothing.
        """
        index = self._contents.topics.get(topic_id)
        if index is None or index.copy is not None or not index.bases:
            return Offset(0)
        return Offset(index.end)

    def left_topics(self) -> list[TopicId]:
        """Return the topics that were this broker's once, and of which the journal holds some."""
        return [
            topic_id
            for topic_id, index in self._contents.topics.items()
            if topic_id not in self._topics and index.copy is None
        ]

    def follow(self, topic_id: TopicId, epoch: int, exported: Offset) -> None:
        """Take in how far the segments of such a topic reach, and under which epoch."""
        index = self._contents.topics.get(topic_id)
        if index is not None and topic_id not in self._topics and index.follow(epoch, exported):
            self._housekeeping.look_around()

    async def take_over(
        self, topic_id: TopicId, epoch: int, start: Offset, producers: Iterable[LastBatch] = ()
    ) -> None:
        """Begin an ownership, durably: the topic goes on at an offset, with these producers known.

        Whatever the journal held of it before does not count any more, also after a restart. Raises
        Fenced if this journal has promised to a later owner.
        """
        assert topic_id not in self._topics, "a topic is let go before it is taken over"
        self.mirrors.leave(topic_id, epoch)
        owned = Owned(topic_id, epoch, start)
        index = TopicIndex()
        index.own(owned)
        index.producers = {last.stamp.producer_id: last for last in producers}
        self._contents.topics[topic_id] = index
        self._writer.queue(_TakeOver(owned, index, lambda error: None))
        for payload in encode_producers({topic_id: index.producers}):
            self._writer.queue(Entry(Kind.PRODUCERS, (payload,), durability="fsync"))
        await self._writer.flush()
        self._housekeeping.look_around()

    def replicate(
        self, topic_id: TopicId, stream: TopicStream, subscriptions: Iterable[SubscriptionId] = ()
    ) -> None:
        """Send a topic's records to mirrors from now on, those of its subscriptions' included."""
        self._streams[topic_id] = stream
        for subscription_id in subscriptions:
            self.belongs(subscription_id, topic_id)
        self.topic(topic_id).replicate_to(stream)

    def end_replication(self, topic_id: TopicId) -> None:
        """Send nothing more to mirrors; acknowledge nothing more that was to be sent."""
        for subscription_id in self._subscriptions_of.pop(topic_id, ()):
            self._topic_of.pop(subscription_id, None)
        stream = self._streams.pop(topic_id, None)
        if stream is not None:
            stream.fail(Unavailable(f"topic {topic_id} is not served here any more; repeat"))

    def belongs(self, subscription_id: SubscriptionId, topic_id: TopicId) -> None:
        """Take in whose messages a subscription's progress is about."""
        self._topic_of[subscription_id] = topic_id
        self._subscriptions_of.setdefault(topic_id, set()).add(subscription_id)

    def progress_of_topic(self, topic_id: TopicId) -> dict[SubscriptionId, Progress]:
        """Return the progress of all subscriptions of a topic, as queued so far."""
        return self.mirrors.progress(sorted(self._subscriptions_of.get(topic_id, ())))

    def let_go(self, topic_id: TopicId, *, forget: bool) -> None:
        """Serve a topic no more. What the journal holds stays, unless all of it is elsewhere."""
        self.end_replication(topic_id)
        log = self._topics.pop(topic_id, None)
        if log is not None:
            log.drop()
        if self._tier is not None:
            self._tier.exporter.unregister(topic_id)
        if forget:
            self._contents.topics.pop(topic_id, None)
            self._housekeeping.look_around()

    def drop_topic(self, topic_id: TopicId) -> None:
        """Forget a topic; its bytes go with the files that hold nothing else.

        Its segments are the catalogue's: `remove_segments` deletes them.
        """
        self.end_replication(topic_id)
        self.mirrors.forget(topic_id)
        self.knowing.topic_gone(topic_id)
        self._contents.topics.pop(topic_id, None)
        log = self._topics.pop(topic_id, None)
        if log is not None:
            log.drop()
        if self._tier is not None:
            self._tier.exporter.unregister(topic_id)
        self._housekeeping.look_around()

    # Segments.

    def start_upkeep(self) -> None:
        """Let history expire and leftovers go from now on.

        To be called once all topics and subscriptions are known: what nobody is known to need may
        be deleted.
        """
        if self._tier is not None:
            self._tier.upkeep.start()

    def look_at_retention(self) -> None:
        """Let history go soon that need not stay any more, because a rule has changed."""
        if self._tier is not None:
            self._tier.upkeep.wake()

    async def remove_segments(self, topic_id: TopicId, name: str) -> None:
        """Remove the segments of a topic that is being deleted; may be repeated after a crash."""
        if self._tier is not None:
            self._tier.exporter.unregister(topic_id)
            await self._tier.remove_topic(topic_id, name)

    async def seal_topic(self, topic_id: TopicId) -> None:
        """Wait until everything of a topic is in segments, so that another broker can serve it.

        What waits for mirrors is waited for: an acknowledgement must not come after this.
        """
        await self.flush()
        log = self._topics.get(topic_id)
        if log is not None:
            await log.wait_until_settled()
        if self._tier is not None:
            await self._tier.exporter.seal(topic_id)

    async def export_tail(
        self, topic_id: TopicId, name: str, epoch: int, start: Offset, batches: Batches
    ) -> Offset:
        """Bring messages of another broker's journal into segments; return where they end now."""
        if self._tier is None:
            raise Unavailable(f"topic {name} cannot be taken over without segments")
        origin = SegmentOrigin(topic=name, topic_id=topic_id, epoch=epoch)
        return await self._tier.export_tail(origin, start, batches)

    async def seal_all(self, seconds_max: float) -> bool:
        """Bring everything into segments within that time; tell whether that succeeded."""
        if self._tier is None:
            return True
        return await self._tier.seal_all(seconds_max)

    @property
    def unexported_bytes(self) -> int:
        """How much of the journal is in no segment."""
        return self._tier.exporter.unexported_bytes if self._tier is not None else 0

    @property
    def store_failure(self) -> DanubeError | None:
        """Why the segment store takes nothing at the moment; messages stay in the journal."""
        return self._tier.failure if self._tier is not None else None

    def failing_exports(self) -> list[tuple[str, DanubeError]]:
        """Return the topics that cannot be exported, each with the reason.

        Their messages stay in the journal, and with them every journal file since.
        """
        if self._tier is None:
            return []
        failing = self._tier.exporter.failing()
        return [(each.segments.origin.topic, each.failure) for each in failing if each.failure]

    # Progress of subscriptions.

    def drop_subscription(self, subscription_id: SubscriptionId) -> None:
        """Forget a subscription's progress."""
        self.knowing.subscription_gone(subscription_id)
        self._contents.progress.pop(subscription_id, None)
        topic_id = self._topic_of.pop(subscription_id, None)
        if topic_id is not None:
            self._subscriptions_of[topic_id].discard(subscription_id)

    def progress(self, subscription_id: SubscriptionId) -> Progress | None:
        """Return all that was journaled or queued for it so far; None if it has no record."""
        folded = self._contents.progress.get(subscription_id)
        return folded.whole() if folded is not None else None

    def create_progress(self, subscription_id: SubscriptionId, cursor: Offset, done: Done) -> None:
        """Journal where a subscription starts; see `append_progress`."""
        self.replace_progress(subscription_id, Progress(cursor), done)

    def replace_progress(
        self, subscription_id: SubscriptionId, progress: Progress, done: Done
    ) -> None:
        """Journal a whole progress, whatever there was before; see `append_progress`."""
        entry = _ProgressEntry(encode_progress(subscription_id, progress), WHOLE_PROGRESS, done)
        if self._queue_progress(subscription_id, entry):
            self._contents.progress[subscription_id] = FoldedProgress(progress)

    def append_progress(
        self, subscription_id: SubscriptionId, change: ProgressChange, done: Done
    ) -> None:
        """Journal a change of progress; `done(None)` once it is synced, in the order of calls.

        Never raises: `done(error)` tells that it was not taken, or that the journal failed.
        """
        folded = self._contents.progress.get(subscription_id)
        if folded is None:
            missing = NotFound(f"subscription {subscription_id} has no progress to change")
            call_soon(lambda: done(missing))
            return
        entry = _ProgressEntry(encode_progress(subscription_id, change), 0, done)
        if self._queue_progress(subscription_id, entry):
            folded.apply(change)

    def _queue_progress(self, subscription_id: SubscriptionId, entry: _ProgressEntry) -> bool:
        topic_id = self._topic_of.get(subscription_id)
        stream = self._streams.get(topic_id) if topic_id is not None else None
        log = self._topics.get(topic_id) if topic_id is not None else None
        try:
            if log is not None and log.fenced is not None:
                raise log.fenced
            if stream is not None and stream.failure is not None:
                raise stream.failure
            self._writer.queue(entry, reserve_bytes=_PROGRESS_RESERVE_BYTES)
            if stream is not None:
                entry.stream = stream
                entry.number = stream.add(Kind.PROGRESS, entry.flags, tuple(entry.parts))
        except DanubeError as error:
            refusal = error  # The name bound by `except` is gone when the callback runs.
            call_soon(lambda: entry.done(refusal))
            return False
        return True

    async def flush(self) -> None:
        """Wait until everything queued so far is synced; raise Unavailable if it will not be."""
        await self._writer.flush()

    async def close(self) -> None:
        """Write what is queued, mark the journal as closed, and let go of the directory."""
        if self._tier is not None:
            await self._tier.stop()
        await self._writer.close()
        await self._housekeeping.stop()
        await self._lock.release()

    def _fence_log(self, topic_id: TopicId, error: DanubeError) -> None:
        stream, log = self._streams.get(topic_id), self._topics.get(topic_id)
        if stream is not None:
            stream.fail(error)
        if log is not None:
            log.fail(error)

    def _rotated(self, finished: JournalFile) -> None:
        self._housekeeping.file_finished(finished)
        if self._tier is not None and self._space is not None and self._space.is_short:
            self._tier.exporter.wake()


def _keeping(retention: LocalRetention) -> Keeping:
    return Keeping(time_ms=retention.time_minutes * _MINUTE_MS, total_bytes=retention.size_mb * MIB)


def _new_header(directory: str, identity: str, now_ms: int) -> FileHeader:
    journal = xxhash.xxh3_64_hexdigest(f"{identity}\0{directory}\0{now_ms}".encode())
    return FileHeader(journal=journal, identity=identity, created_ms=now_ms)


def _cannot_open(directory: str, error: OSError) -> Unavailable:
    return Unavailable(
        f"cannot open the journal in {directory}: {describe(error)}; see to the disk"
    )
