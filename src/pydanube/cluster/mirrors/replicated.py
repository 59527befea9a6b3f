"""Keeps the copies of one topic: who has them, who is behind, who takes whose place."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from typing_extensions import override

from pydanube.cluster.mirrors.copies import Copy
from pydanube.cluster.mirrors.link import PAUSE_SECONDS, Link
from pydanube.cluster.mirrors.ports import ReplicaSets, ReplicaState, Replicated
from pydanube.cluster.mirrors.settings import MirrorSettings
from pydanube.errors import DanubeError
from pydanube.model.ids import BrokerId
from pydanube.observability.counts import MirrorMetrics
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.errors import Fenced
from pydanube.storage.mirrors.replication import plan_members
from pydanube.storage.mirrors.stream import TopicStream
from pydanube.storage.topic_log import TopicLog

_log = get_logger(__name__)

LinkTo = Callable[[BrokerId], Link]


class ReplicatedTopic(Replicated):
    """A topic whose records go to mirrors.

    The set changes when a member makes no progress for too long, when one is to be relieved, and
    when there are fewer than wanted and somebody is free. New members have everything before they
    count. One change is under way at a time.
    """

    def __init__(
        self,
        topic: str,
        log: TopicLog,
        stream: TopicStream,
        *,
        wanted: int,
        sets: ReplicaSets,
        link_to: LinkTo,
        settings: MirrorSettings,
        clock: Clock,
        tasks: TaskScope,
        metrics: MirrorMetrics,
        closed: Callable[["ReplicatedTopic"], None],
    ) -> None:
        self.topic = topic
        self.stream = stream
        self._log = log
        self._wanted = wanted
        self._sets = sets
        self._link_to = link_to
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._metrics = metrics
        self._on_closed = closed
        self._copies: dict[BrokerId, Copy] = {}
        self._unwanted: set[BrokerId] = set()
        self._avoided: dict[BrokerId, int] = {}
        """Who failed as a mirror, and until when not to try again."""
        self._moved = asyncio.Event()
        self._changing = False
        self._closed = False
        stream.on_added = self._added
        stream.on_cut = self._cut

    # What others ask.

    @property
    @override
    def state(self) -> ReplicaState:
        members = self.stream.replication.members
        return ReplicaState(
            wanted=self._wanted,
            members=members,
            behind=tuple(
                each for each in members if each in self._copies and not self._is_complete(each)
            ),
            waiting_bytes=self.stream.unacknowledged_bytes,
            failure=self.stream.failure,
        )

    @property
    def wanted(self) -> int:
        """How many journals shall hold its messages."""
        return self._wanted

    @property
    def lags(self) -> Mapping[BrokerId, int]:
        """How many records each mirror does not have."""
        return {broker: copy.lag for broker, copy in self._copies.items()}

    @property
    def is_changing(self) -> bool:
        """Whether the set is being replaced."""
        return self._changing

    @override
    def want(self, replicas: int) -> None:
        self._wanted = replicas

    @override
    def replace(self, broker: BrokerId) -> None:
        self._unwanted.add(broker)

    @override
    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._moved.set()
        for broker in list(self._copies):
            self._drop(broker)
        self._on_closed(self)

    # Beginning.

    async def open(self, members: Sequence[BrokerId]) -> None:
        """Bring the first members up and record them; raise Fenced or Unavailable if that fails.

        Whoever is not there in time is left out, and looked for again later.
        """
        self._changing = True
        try:
            await self._change(tuple(members), self._settings.patience_ms)
        finally:
            self._changing = False
        if self.stream.failure is not None:
            raise self.stream.failure

    # Looking after the set.

    def look(self, now_ms: int) -> None:
        """See whether the set should be another one; to be called from time to time."""
        if self._closed or self._changing or self.stream.failure is not None:
            return
        members = self.stream.replication.members
        missing = {
            broker
            for broker in self._copies
            if broker in self._unwanted
            or self._sets.is_leaving(broker)
            or self._is_missing(broker, now_ms)
        }
        avoided = {broker for broker, until in self._avoided.items() if until > now_ms}
        candidates = []
        if len(members) - len(missing) < self._wanted:
            candidates = [
                broker
                for broker in self._sets.candidates(self.topic, members)
                if broker not in avoided
            ]
        plan = plan_members(
            self.stream.replication.own,
            members,
            missing,
            candidates,
            self._wanted,
        )
        if plan != members:
            self._changing = True
            self._tasks.start(self._change_to(plan), f"mirrors of {self.topic}")

    def _is_missing(self, broker: BrokerId, now_ms: int) -> bool:
        if self._sets.address_of(broker) is None:
            return True  # Its lease has ended: it has been waited for already.
        copy = self._copies[broker]
        if copy.is_complete:
            copy.moved_ms = now_ms
        return now_ms - copy.moved_ms > self._settings.patience_ms

    async def _change_to(self, plan: tuple[BrokerId, ...]) -> None:
        try:
            await self._change(plan, self._settings.join_ms)
        finally:
            self._changing = False

    async def _change(self, plan: tuple[BrokerId, ...], patience_ms: int) -> None:
        replication = self.stream.replication
        before = replication.members
        plan = await self._bring_up(plan, patience_ms)
        if self._closed or self.stream.failure is not None or plan == before:
            self._keep_only(() if self._closed else before)
            return
        replication.begin_change(plan)
        if not await self._wait_for(lambda: replication.is_covered, patience_ms):
            replication.end_change(recorded=False)
            self.stream.set_changed()
            self._keep_only(before)
            return
        if await self._record(plan):
            replication.end_change(recorded=True)
            self._unwanted.difference_update(set(before) - set(plan))
            self._keep_only(plan)
            self.stream.set_changed()
            if before:
                self._metrics.set_changed(len(before), len(plan))
            _log.info("the copies of a topic are on", topic=self.topic, brokers=list(plan))

    async def _bring_up(self, plan: tuple[BrokerId, ...], patience_ms: int) -> tuple[BrokerId, ...]:
        """Let new members catch up; return the plan without those that did not in time."""
        own = self.stream.replication.own
        joining = [broker for broker in plan if broker != own and broker not in self._copies]
        for broker in joining:
            copy = Copy(self.topic, broker, self.stream, self._log, self._clock, self._metrics)
            copy.on_moved = self._moved.set
            self._copies[broker] = copy
            self._link_to(broker).add(copy)

        def is_up(broker: BrokerId) -> bool:
            return broker in self._copies and self._copies[broker].is_live.is_set()

        await self._wait_for(lambda: all(map(is_up, joining)), patience_ms)
        late = [broker for broker in joining if not is_up(broker)]
        until_ms = self._clock.monotonic_ms() + self._settings.retry_ms
        self._avoided.update(dict.fromkeys(late, until_ms))
        for broker in late:
            self._drop(broker)
        return tuple(broker for broker in plan if broker not in late)

    async def _record(self, plan: tuple[BrokerId, ...]) -> bool:
        """Record a set; while it is not known whether it was, both majorities are needed."""
        while not self._closed and self.stream.failure is None:
            try:
                await self._sets.record(self.topic, self.stream.epoch, plan)
            except Fenced as error:
                self.stream.fail(error)
            except DanubeError as error:
                _log.warning("the copies of a topic are not recorded", cause=str(error))
                await self._clock.sleep(PAUSE_SECONDS)
            else:
                return True
        return False

    async def _wait_for(self, condition: Callable[[], bool], patience_ms: int) -> bool:
        """Wait until a condition holds that copies bring about; tell whether it does."""
        timer = self._clock.call_later(patience_ms / 1000, self._moved.set)
        until_ms = self._clock.monotonic_ms() + patience_ms
        try:
            while not condition():
                over = self._clock.monotonic_ms() >= until_ms
                if over or self._closed or self.stream.failure is not None:
                    return False
                self._moved.clear()
                await self._moved.wait()
            return True
        finally:
            timer.cancel()

    # Copies.

    def _keep_only(self, members: Sequence[BrokerId]) -> None:
        for broker in [broker for broker in self._copies if broker not in members]:
            self._drop(broker)

    def _drop(self, broker: BrokerId) -> None:
        copy = self._copies.pop(broker, None)
        if copy is not None:
            self._link_to(broker).remove(copy)

    def _is_complete(self, broker: BrokerId) -> bool:
        return self._copies[broker].is_complete

    def _added(self) -> None:
        for broker, copy in self._copies.items():
            if copy.is_live.is_set():
                self._link_to(broker).has_records(copy)

    def _cut(self, broker: BrokerId) -> None:
        copy = self._copies.get(broker)
        if copy is not None:
            self._link_to(broker).restart(copy)
