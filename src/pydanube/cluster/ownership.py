"""Serves the topics that the metadata gives to this broker: opens, hands over, lets go."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs
from typing_extensions import override

from pydanube.cluster.directory import Directory
from pydanube.cluster.membership import Claim, Membership
from pydanube.cluster.mirrors.ports import Replicated
from pydanube.cluster.opening import Opening
from pydanube.cluster.records import MOVES, Assignment, Handover, Marker, MoveReason, encode
from pydanube.errors import DanubeError, NotFound, Unavailable, WrongBroker
from pydanube.metadata import keys
from pydanube.metadata.store import Delete, Expect, MetadataStore, Operation, Put
from pydanube.model.ids import BrokerId
from pydanube.model.names import partition_name
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.topic_log import TopicLog
from pydanube.topics.catalog import TopicRecord
from pydanube.topics.manager import PARTITIONS_MAX, TopicManager
from pydanube.topics.placement import Placement
from pydanube.topics.registration import Registration
from pydanube.topics.topic import Topic

WORK_MAX = 16
"""Topics that are opened, handed over or let go at a time."""
LOOK_SECONDS = 1.0
_REST = 2.0
"""So much longer than a look takes is the pause before the next."""
_OPEN_NEW_MS_MAX = 5_000
"""How long whoever creates a topic waits for an opening that fails at first."""
_FIRST_PAUSE_SECONDS = 0.1
_LAST_PAUSE_SECONDS = 5.0

_log = get_logger(__name__)

Choose = Callable[[str, Sequence[BrokerId]], BrokerId]


class _Served(Struct, frozen=True, eq=False):
    topic: Topic
    epoch: int
    claim: Claim
    replicated: Replicated | None

    async def stop_copies(self) -> None:
        """Stream to mirrors no more; to be called before the log is let go."""
        if self.replicated is not None:
            await self.replicated.close()


class Ownership(Placement):
    """Makes what is served here what the metadata says, again and again.

    One thing at a time happens to a topic. A topic is served under the epoch of its assignment, or
    not at all; whoever asks for one that is elsewhere is told where.
    """

    def __init__(
        self,
        *,
        store: MetadataStore,
        directory: Directory,
        membership: Membership,
        topics: TopicManager,
        registration: Registration,
        opening: Opening,
        clock: Clock,
        tasks: TaskScope,
        choose: Choose,
        count: Callable[[str], None],
    ) -> None:
        self._count = count
        self._store = store
        self._directory = directory
        self._membership = membership
        self._topics = topics
        self._registration = registration
        self._opening = opening
        self._clock = clock
        self._tasks = tasks
        self._choose = choose
        self._me = membership.broker
        self._served: dict[str, _Served] = {}
        self._begun: dict[str, int] = self._wanted()
        """By topic, the last epoch that was begun; by an earlier process, what was there before."""
        self._busy: dict[str, asyncio.Future[None]] = {}
        self._failures: dict[str, float] = {}
        """How long to wait before the next attempt at a topic that could not be opened."""
        self._slots = asyncio.Semaphore(WORK_MAX)
        self._wakeup = asyncio.Event()
        self._stopping = False

    # What topics ask.

    @override
    def absence(self, topic: str) -> DanubeError | None:
        if self._topics.catalog.topic(topic) is None:
            return None
        owner = self._directory.owner_of(topic)
        if owner is None:
            return Unavailable(f"topic {topic} is changing hands; look it up again")
        if owner == self._me:
            return Unavailable(f"topic {topic} is being opened here; try again")
        record = self._directory.record_of(owner)
        if record is None:
            return Unavailable(
                f"topic {topic} waits for broker {owner}, which is not there; try again later"
            )
        return WrongBroker(topic, record.broker_url)

    @override
    def partitions(self, base: str) -> list[str]:
        found = []
        for index in range(PARTITIONS_MAX):
            name = partition_name(base, index)
            if self._topics.catalog.topic(name) is None:
                break
            found.append(name)
        return found

    @override
    def plan_new(self, topic: str, record: TopicRecord) -> Sequence[Operation]:
        if not self._membership.is_certain:
            raise Unavailable("this broker is cut off from its cluster; try another one")
        active = self._directory.view.active()
        if not active:
            raise Unavailable("no broker takes topics at the moment; activate one")
        chosen = self._choose(topic, active)
        assignment = Assignment(reason="create", time_ms=self._clock.now_ms())
        return [Put(keys.assignment(chosen, topic), encode(assignment))]

    @override
    async def open_new(self, topic: str, record: TopicRecord, revision: int) -> Topic:
        """Open a topic that was just given to this broker, and try again for a moment if it fails.

        The topic is there already: whoever asked for it would be told of a failure that is none.
        """
        deadline_ms = self._clock.monotonic_ms() + _OPEN_NEW_MS_MAX
        while True:
            self._check_mine(topic, revision)
            while topic in self._busy:
                await asyncio.shield(self._busy[topic])
            if topic not in self._served:
                await self._alone(topic, self._open(topic, revision))
            served = self._topics.find(topic)
            if served is not None:
                return served
            if self._clock.monotonic_ms() >= deadline_ms:
                raise Unavailable(f"topic {topic} has not been opened yet; try again")
            await self._clock.sleep(_FIRST_PAUSE_SECONDS)

    def _check_mine(self, topic: str, revision: int) -> None:
        mine = self._store.get(keys.assignment(self._me, topic))
        if mine is None or mine.revision != revision:
            owner = self._directory.owner_of(topic)
            where = self._directory.record_of(owner) if owner is not None else None
            raise WrongBroker(topic, where.broker_url if where is not None else None)

    @override
    def plan_delete(self, topic: str) -> Sequence[Operation]:
        self._begun.pop(topic, None)
        served = self._served.pop(topic, None)
        if served is not None:
            self._tasks.start(served.stop_copies(), f"end of the copies of {topic}")
        return [
            Delete(keys.assignment(self._me, topic)),
            Delete(keys.unassigned_topic(topic)),
            Delete(keys.handover(topic)),
            Delete(keys.replicas(topic)),
        ]

    # Following the metadata.

    async def run(self) -> None:
        """Follow until cancelled."""
        self._directory.wakes(self._wakeup)
        self._membership.tells(self._membership_changed)
        while True:
            self._wakeup.clear()
            began = self._clock.monotonic_seconds()
            self._reconcile()
            # With many topics a look takes its time, and changes come in crowds.
            await self._clock.sleep(_REST * (self._clock.monotonic_seconds() - began))
            timer = self._clock.call_later(LOOK_SECONDS, self._wakeup.set)
            await self._wakeup.wait()
            timer.cancel()

    def _membership_changed(self) -> None:
        """Answer what waited for it, or refuse it: others may have been given these topics."""
        for name, served in self._served.items():
            log = served.topic.log
            if log is not None and served.claim.is_over:
                log.interrupt(_moved(name))
            served.topic.answer_held()
        self._wakeup.set()

    def _reconcile(self) -> None:
        wanted = self._wanted()
        for name, served in list(self._served.items()):
            if wanted.get(name) != served.epoch or served.claim.is_over or self._is_stuck(served):
                self._begin(name, self._let_go(name, served))
        if self._stopping or not self._membership.is_certain:
            return
        for name, epoch in wanted.items():
            if name not in self._served:
                self._begin(name, self._open(name, epoch))
                continue
            marked = self._directory.view.markers.get(name)
            if marked is not None and not marked.marker.ready:
                self._begin(name, self._heed(name, marked.marker))
                continue
            served = self._served[name]
            if served.replicated is None and self._opening.lacks_copies(served.topic):
                self._begin(name, self._begin_copies(name, served))

    def _is_stuck(self, served: _Served) -> bool:
        """Tell whether a topic takes nothing more although the journal works.

        Something was in doubt when mirrors refused it. They may take more by now; the topic does
        not until it has been opened anew.
        """
        log = served.topic.log
        failed = log is not None and log.failure is not None
        return failed and self._topics.storage.failure is None

    def _wanted(self) -> dict[str, int]:
        found = {}
        for entry in self._store.list(keys.assignments(self._me)):
            topic = keys.assigned_topic(self._me, entry.key)
            if topic is not None:
                found[topic] = entry.revision
        return found

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if name in self._busy:
            work.close()
            return
        # Claimed at once: before the task has its first turn, somebody else may look.
        self._tasks.start(self._carry_out(name, work, self._claim(name)), f"ownership of {name}")

    async def _alone(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Do something with a topic while nothing else happens to it."""
        await self._carry_out(name, work, self._claim(name))

    def _claim(self, name: str) -> asyncio.Future[None]:
        assert name not in self._busy, f"something happens to {name} already"
        self._busy[name] = asyncio.get_running_loop().create_future()
        return self._busy[name]

    async def _carry_out(
        self, name: str, work: Coroutine[Any, Any, None], over: asyncio.Future[None]
    ) -> None:
        try:
            async with self._slots:
                await work
            self._failures.pop(name, None)
        except DanubeError as error:
            await self._pause_after(name, error)
        finally:
            del self._busy[name]
            over.set_result(None)
            self._wakeup.set()

    async def _pause_after(self, name: str, error: DanubeError) -> None:
        pause = self._failures.get(name, _FIRST_PAUSE_SECONDS)
        self._failures[name] = min(pause * 2, _LAST_PAUSE_SECONDS)
        _log.warning("a topic did not change hands; tried again", topic=name, cause=str(error))
        await self._clock.sleep(pause)

    async def _open(self, name: str, epoch: int) -> None:
        record = self._topics.catalog.topic(name)
        if record is None:
            return
        if record.deleting:
            await self._topics.delete_stored(name, record)
            return
        claim = self._membership.claim()
        if not await self._opening.prepare(name, record, epoch):
            return
        topic = self._topics.build(name, record, epoch, claim)
        try:
            replicated = await self._opening.replicate(topic, epoch)
            entry = self._store.get(keys.assignment(self._me, name))
            if entry is None or entry.revision != epoch or claim() is not None:
                raise Unavailable(f"topic {name} has gone elsewhere while it was being opened")
        except BaseException:
            self._topics.storage.let_go(record.id, forget=False)
            raise
        self._registration.restore_topic(topic)
        self._recall_absences(topic, epoch)
        self._topics.admit(topic)
        self._served[name] = _Served(topic, epoch, claim, replicated)
        self._count("assign")
        _log.info("topic opened", topic=name, epoch=epoch)

    def _recall_absences(self, topic: Topic, epoch: int) -> None:
        """Wait for no holder that had gone before the topic moved here.

        Only what the owner just before has said counts: after a failover, or when an ownership
        begins again, the holder may have been back meanwhile.
        """
        is_first = self._begun.get(topic.name, 0) < epoch
        self._begun[topic.name] = epoch
        entry = self._store.get(keys.assignment(self._me, topic.name))
        if not is_first or entry is None:
            return
        if msgspec.json.decode(entry.value, type=Assignment).reason not in MOVES:
            return
        handover = self._opening.handover(topic.name)
        for name, away_ms in handover.away_ms.items() if handover is not None else ():
            if name in topic.subscriptions:
                topic.subscriptions[name].been_away(away_ms)

    async def _begin_copies(self, name: str, served: _Served) -> None:
        """Let others follow a topic that shall have copies since somebody said so."""
        if self._served.get(name) is not served:
            return
        replicated = await self._opening.begin_copies(served.topic, served.epoch)
        if replicated is not None:
            self._served[name] = structs.replace(served, replicated=replicated)

    async def _let_go(self, name: str, served: _Served) -> None:
        """Stop serving what is not this broker's any more, or may not be."""
        self._served.pop(name, None)
        self._close(served.topic)
        await served.stop_copies()
        self._topics.storage.let_go(served.topic.record.id, forget=False)
        _log.warning("topic let go: it may be another broker's", topic=name, epoch=served.epoch)

    def _close(self, topic: Topic) -> None:
        if topic.closing() is None:
            topic.drain()
        topic.close(_moved(topic.name))
        self._topics.release(topic)
        self._registration.retire(topic)
        self._count("unassign")

    async def _heed(self, name: str, marker: Marker) -> None:
        """Do what somebody asks the owner of a topic for."""
        if marker.reason == "delete":
            await self._registration.delete_physical(name)
        else:
            await self.hand_over(name, marker.reason, marker.to_broker)

    # Handing over.

    async def hand_over(self, name: str, reason: MoveReason, to: BrokerId | None = None) -> None:
        """Let a topic go in order: everything stored, its end and cursors told to the next owner.

        Most of it is brought into segments while the topic still takes messages, so that the
        pause is short.
        """
        served = self._served.get(name)
        if served is None:
            raise NotFound(f"topic {name} is not served here")
        topic = served.topic
        storage, topic_id = self._topics.storage, topic.record.id
        if topic.is_reliable:
            await storage.seal_topic(topic_id)
        topic.drain()
        away_ms = {
            name: away for name, each in topic.subscriptions.items() if (away := each.away_ms())
        }
        handover = Handover(epoch=served.epoch, away_ms=away_ms)
        try:
            if topic.log is not None:
                await storage.seal_topic(topic_id)
                topic.close(_moved(name))
                # Acks of this very moment are journaled by the event loop's next turn.
                await self._clock.sleep(0)
                await storage.flush()
                _check_whole(topic.log, name)
                handover = structs.replace(self._describe(topic, served.epoch), away_ms=away_ms)
            await self._give(name, served, handover, reason, to)
        finally:
            self._served.pop(name, None)
            self._close(topic)
            await served.stop_copies()
            storage.let_go(topic_id, forget=False)
        self._forget(topic)
        _log.info("topic handed over", topic=name, epoch=served.epoch, reason=reason)

    def _describe(self, topic: Topic, epoch: int) -> Handover:
        assert topic.log is not None
        cursors = {}
        for name, subscription in topic.subscriptions.items():
            progress = self._topics.storage.progress(subscription.id)
            if progress is not None:
                cursors[name] = progress
        return Handover(
            epoch=epoch,
            end=topic.log.durable_end,
            producers=tuple(topic.log.producers.values()),
            cursors=cursors,
        )

    async def _give(
        self,
        name: str,
        served: _Served,
        handover: Handover,
        reason: MoveReason,
        to: BrokerId | None,
    ) -> None:
        marker = Marker(
            reason=reason,
            from_broker=self._me,
            to_broker=to,
            ready=True,
            time_ms=self._clock.now_ms(),
        )
        await self._store.transact(
            [Expect(keys.assignment(self._me, name), served.epoch)],
            [
                Delete(keys.assignment(self._me, name)),
                Put(keys.unassigned_topic(name), encode(marker)),
                Put(keys.handover(name), encode(handover)),
            ],
        )

    def _forget(self, topic: Topic) -> None:
        self._begun.pop(topic.name, None)
        storage = self._topics.storage
        for subscription in topic.subscriptions.values():
            storage.drop_subscription(subscription.id)
        storage.let_go(topic.record.id, forget=True)

    async def hand_over_all(self, reason: MoveReason, seconds_max: float) -> bool:
        """Hand over every topic within that time; tell whether that succeeded."""
        self._stopping = True
        try:
            async with asyncio.timeout(seconds_max):
                await asyncio.gather(
                    *(self._last_hand_over(name, reason) for name in list(self._served))
                )
        except TimeoutError:
            _log.warning("not every topic was handed over in time", left=len(self._served))
        return not self._served

    async def _last_hand_over(self, name: str, reason: MoveReason) -> None:
        while name in self._busy:
            await asyncio.shield(self._busy[name])
        if name in self._served:
            await self._alone(name, self.hand_over(name, reason))


def _check_whole(log: TopicLog, name: str) -> None:
    """Refuse to hand over a log that holds what was never shown as durable.

    Producers' sequences know of it, and the next owner would take it for stored.
    """
    if log.next_offset != log.durable_end:
        raise Unavailable(
            f"offsets {log.durable_end} to {log.next_offset - 1} of {name} are in doubt; the topic "
            "is opened again before it moves"
        )


def _moved(name: str) -> Unavailable:
    return Unavailable(f"topic {name} is no longer served here; look it up again")
