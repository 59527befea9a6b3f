"""One topic's copy on one mirror, as its owner knows it, and how it is brought up to date."""

import asyncio
from collections.abc import Callable
from typing import assert_never

from pydanube.cluster.mirrors.peers import Peers
from pydanube.errors import DanubeError, Unavailable
from pydanube.model.ids import BrokerId, Offset, TopicId
from pydanube.observability.counts import MirrorMetrics
from pydanube.runtime.clock import Clock
from pydanube.storage.errors import Fenced
from pydanube.storage.journal.reader import StoredRecord
from pydanube.storage.journal.records import Kind
from pydanube.storage.mirrors.mirror_logs import Outcome, Section, SectionAnswer, Whole
from pydanube.storage.mirrors.stream import Record, TopicStream
from pydanube.storage.storage import Storage
from pydanube.storage.topic_log import TopicLog

CATCH_UP_BYTES = 2 * 1024 * 1024
FIRST_PAUSE_SECONDS = 0.1
LAST_PAUSE_SECONDS = 5.0
SETBACKS_EXCUSED = 1
"""A mirror may have restarted or lost its copy since; it is brought up to date at once."""


class Copy:
    """Whether a mirror follows a topic, and how far it has been sent its records.

    A copy that does not follow is brought up to date first, from the journal if memory does not
    reach back far enough. `is_live` is set while it follows.
    """

    def __init__(
        self,
        topic: str,
        broker: BrokerId,
        stream: TopicStream,
        log: TopicLog,
        clock: Clock,
        metrics: MirrorMetrics,
    ) -> None:
        self.topic = topic
        self.broker = broker
        self.stream = stream
        self.log = log
        self.is_live = asyncio.Event()
        self.sent = 0
        self.attempt = 0
        """Answers to what was sent in an earlier one do not count."""
        self.moved_ms = clock.monotonic_ms()
        """When it last got further, or had everything."""
        self.setbacks = 0
        """How often it was brought up to date and lacked something again, with nothing between."""
        self.failure: DanubeError | None = None
        self.on_moved: Callable[[], None] | None = None
        self.closed = False
        self._clock = clock
        self._metrics = metrics

    @property
    def topic_id(self) -> TopicId:
        """Of the topic."""
        return self.stream.topic_id

    @property
    def is_complete(self) -> bool:
        """Whether the mirror has everything there is."""
        replication = self.stream.replication
        return self.is_live.is_set() and replication.position(self.broker) >= replication.last

    @property
    def lag(self) -> int:
        """How many records the mirror does not have."""
        replication = self.stream.replication
        return replication.last - replication.position(self.broker)

    def next_section(self, bytes_max: int) -> Section | None:
        """Return what to send next; None if everything was sent."""
        if not self.is_live.is_set():
            return None
        records = self.stream.take(self.sent, bytes_max)
        if not records:
            return None
        section = self._section(before=self.sent, records=records)
        self.sent += len(records)
        return section

    def answered(self, answer: SectionAnswer) -> bool:
        """Take in what a mirror says; tell whether it still follows."""
        match answer.outcome:
            case Outcome.FENCED:
                self.stream.fail(_fenced(self.topic, answer.epoch))
                return True
            case Outcome.MISSING:
                self.setbacks += 1
                self._metrics.fell_back(self.broker)
                self.failure = _lost(self.topic, self.broker)
                return False
            case Outcome.SYNCED:
                self.setbacks = 0
                self.moved()
                if answer.sequence is not None:
                    self.stream.has(self.broker, answer.sequence)
                    if self.on_moved is not None:
                        self.on_moved()
                return True
            case _:
                assert_never(answer.outcome)

    def moved(self) -> None:
        """Take in that it gets on; one that always falls back does not."""
        if self.setbacks <= SETBACKS_EXCUSED:
            self.failure = None
            self.moved_ms = self._clock.monotonic_ms()

    @property
    def pause_seconds(self) -> float:
        """How long to wait before it is brought up to date again."""
        repeated = self.setbacks - SETBACKS_EXCUSED
        if repeated <= 0:
            return 0.0
        return min(FIRST_PAUSE_SECONDS * 2.0 ** min(repeated - 1, 16), LAST_PAUSE_SECONDS)

    def stop_following(self) -> None:
        """Bring it up to date before anything else is sent."""
        self.attempt += 1
        self.is_live.clear()

    def close(self) -> None:
        """Send and keep nothing for it any more."""
        self.closed = True
        self.stop_following()
        self.stream.let_go(self.broker)

    async def bring_up(self, peers: Peers, storage: Storage) -> None:
        """Ask what the mirror has, send what it lacks, and let it follow.

        Raises a DanubeError when that fails; then it may be tried again.
        """
        attempt = self.attempt
        stream, log = self.stream, self.log
        # All of one moment: what was numbered by now is told, and what follows is kept.
        sequence = stream.replication.last
        if not stream.keeps_for(self.broker):
            stream.keep_for(self.broker, sequence)
        snapshot = log.snapshot()
        whole = Whole(
            sequence=sequence,
            producers=snapshot.producers,
            progress=storage.progress_of_topic(self.topic_id),
        )
        start = log.unexported_start
        holding = await peers.begin(
            self.broker,
            self.topic,
            self.topic_id,
            epoch=stream.epoch,
            stream=stream.stream,
            start=start,
            whole=whole if start >= snapshot.end else None,
        )
        self._check(attempt)
        self.moved()
        if holding.sequence is None:
            stream.replication.begins(self.broker, 0)
        if holding.sequence is None or not self._follows_from(holding.sequence):
            stream.keep_for(self.broker, sequence)
            at = max(start, holding.end)
            await self._send_tail(peers, attempt, at, snapshot.end)
            reached = await self._send(peers, attempt, self._section(whole=whole))
            if not self._follows_from(reached or 0):
                raise Unavailable(f"broker {self.broker} is too slow to follow {self.topic}")
            self._metrics.caught_up(self.broker)

    def _follows_from(self, sequence: int) -> bool:
        if not self.stream.begins(self.broker, sequence):
            return False
        self.sent = sequence
        self.is_live.set()
        if self.on_moved is not None:
            self.on_moved()
        return True

    async def _send_tail(self, peers: Peers, attempt: int, at: Offset, end: Offset) -> None:
        while at < end:
            records = [
                record
                for record in await self.log.read_records(at, CATCH_UP_BYTES)
                if record.base < end
            ]
            self._check(attempt)
            if not records:
                if self.log.exported_end >= end:
                    return
                raise Unavailable(f"the journal has no offset {at} of {self.topic}")
            await self._send(peers, attempt, self._section(records=list(map(_as_sent, records))))
            sent = sum(len(record.payload) for record in records)
            self._metrics.caught_up_bytes(self.broker, sent)
            at = Offset(records[-1].base + records[-1].count)

    async def _send(self, peers: Peers, attempt: int, section: Section) -> int | None:
        (answer,) = await peers.append(self.broker, [section])
        self._check(attempt)
        match answer.outcome:
            case Outcome.FENCED:
                raise _fenced(self.topic, answer.epoch)
            case Outcome.MISSING:
                raise _lost(self.topic, self.broker)
            case Outcome.SYNCED:
                self.moved()
                return answer.sequence
            case _:
                assert_never(answer.outcome)

    def _section(
        self,
        *,
        before: int | None = None,
        records: list[Record] | None = None,
        whole: Whole | None = None,
    ) -> Section:
        return Section(
            topic_id=self.topic_id,
            epoch=self.stream.epoch,
            stream=self.stream.stream,
            before=before,
            records=records or [],
            whole=whole,
        )

    def _check(self, attempt: int) -> None:
        if attempt != self.attempt:
            raise Unavailable(
                f"the copy of {self.topic} on broker {self.broker} starts from the beginning"
            )


def _as_sent(record: StoredRecord) -> Record:
    return Record(Kind.BATCH, 0, (record.payload,))


def _lost(topic: str, broker: BrokerId) -> Unavailable:
    return Unavailable(f"broker {broker} has lost its copy of {topic}")


def _fenced(topic: str, epoch: int) -> Fenced:
    return Fenced(f"topic {topic} has been taken over with epoch {epoch}")
