"""What operators ask of a cluster: move a topic, empty a broker, let it serve again."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress

from msgspec import Struct

from pydanube.balance.cluster import BrokerMode
from pydanube.cluster.directory import Directory
from pydanube.cluster.planning import ask_for
from pydanube.cluster.records import BrokerState, MoveReason, encode
from pydanube.cluster.staying import Staying
from pydanube.cluster.view import Stated
from pydanube.errors import Conflict, DanubeError, NotFound, Unavailable
from pydanube.metadata import keys
from pydanube.metadata.store import Delete, Expect, MetadataStore, Operation, Put
from pydanube.model.ids import BrokerId
from pydanube.model.names import namespace_of
from pydanube.runtime.clock import Clock

UNLOAD_SECONDS = 30.0
UNDO_SECONDS = 2.0
_LOOK_SECONDS = 0.05


class Drained(Struct, frozen=True, kw_only=True):
    """How far the emptying of a broker has come."""

    started: bool
    total: int
    succeeded: int = 0
    failed: tuple[str, ...] = ()
    pending: int = 0


class Operations:
    """Carries out what operators ask for, on whatever broker they ask."""

    def __init__(
        self, store: MetadataStore, directory: Directory, clock: Clock, staying: Staying
    ) -> None:
        self._store = store
        self._directory = directory
        self._clock = clock
        self._staying = staying

    async def unload_topic(self, topic: str) -> None:
        """Let another broker serve a topic; returns once one has it."""
        view = self._directory.read()
        owner = view.owners.get(topic)
        if owner is None:
            raise NotFound(f"no broker serves topic {topic} at the moment")
        if not any(broker != owner.broker for broker in view.active()):
            raise Conflict(f"there is no other active broker to serve {topic}")
        await self._move(topic, owner.epoch, "unload", UNLOAD_SECONDS)

    async def drain(
        self,
        broker: BrokerId,
        *,
        include: Collection[str] = (),
        exclude: Collection[str] = (),
        parallel_max: int = 1,
        seconds_max: float = 60.0,
        dry_run: bool = False,
    ) -> Drained:
        """Move a broker's topics away, some at a time; all of them unless namespaces are named."""
        view = self._directory.read()
        self._check_known(broker)
        if not any(each != broker for each in view.active()):
            raise Conflict(f"broker {broker} is the only active one; activate another one first")
        topics = {
            topic: view.owners[topic].epoch
            for topic in view.topics_of(broker)
            if (not include or namespace_of(topic) in include)
            and namespace_of(topic) not in exclude
        }
        if dry_run:
            return Drained(started=False, total=len(topics), pending=len(topics))
        deadline = self._clock.monotonic_seconds() + seconds_max
        if not include and not exclude:
            # Nothing new comes; the leader sees to it that it gets empty, whatever becomes of us.
            mode: BrokerMode = "draining" if topics else "drained"
            revision = await self._begin_draining(broker, mode, seconds_max)
        else:
            revision = None
        left = max(deadline - self._clock.monotonic_seconds(), 0.0)
        drained = await self._move_away(topics, parallel_max, left)
        if topics and not drained.succeeded:
            await self._give_up_draining(broker, view.states.get(broker), revision)
            raise Unavailable(
                f"broker {broker} let none of its {len(topics)} topics go within "
                f"{seconds_max:.0f} s, and stays as it was: see `danube brokers list` and its log; "
                "if it hangs, end its process, and the others take its topics"
            )
        return drained

    async def _begin_draining(
        self, broker: BrokerId, mode: BrokerMode, seconds_max: float
    ) -> int | None:
        """Say so in the metadata; return the revision at which that was said."""
        put = Put(keys.broker_state(broker), encode(BrokerState(mode=mode, reason="unload")))
        try:
            async with asyncio.timeout(seconds_max):
                return await self._store.transact([], [put])
        except TimeoutError:
            raise Unavailable(
                f"the metadata accepted no change of broker {broker} within "
                f"{seconds_max:.0f} s; try again through another broker"
            ) from None

    async def _give_up_draining(
        self, broker: BrokerId, before: Stated | None, revision: int | None
    ) -> None:
        """Leave no state behind that nobody works on; what others have said meanwhile stays."""
        if revision is None:
            return
        key = keys.broker_state(broker)
        undo: Operation = Delete(key) if before is None else Put(key, encode(before.state))
        with suppress(DanubeError, TimeoutError):
            async with asyncio.timeout(UNDO_SECONDS):
                await self._store.transact([Expect(key, revision)], [undo])

    async def _move_away(
        self, topics: Mapping[str, int], parallel_max: int, seconds_max: float
    ) -> Drained:
        """Move topics away from the owners they have at these epochs."""
        slots = asyncio.Semaphore(max(parallel_max, 1))
        moved: list[str] = []
        failed: list[str] = []

        async def move(topic: str, epoch: int) -> None:
            async with slots:
                try:
                    # The leader empties the broker, too, and may have been faster.
                    await self._move(topic, epoch, "drain", seconds_max)
                except DanubeError:
                    failed.append(topic)
                else:
                    moved.append(topic)

        try:
            async with asyncio.timeout(seconds_max):
                await asyncio.gather(*(move(topic, epoch) for topic, epoch in topics.items()))
        except TimeoutError:
            pass  # The answer says how many are left; they go on.
        pending = len(topics) - len(moved) - len(failed)
        return Drained(
            started=True,
            total=len(topics),
            succeeded=len(moved),
            failed=tuple(sorted(failed)),
            pending=pending,
        )

    async def activate(self, broker: BrokerId, reason: str) -> None:
        """Let a broker take topics again."""
        self._check_known(broker)
        await self._set_state(broker, BrokerState(mode="active", reason=reason or "admin_activate"))

    async def delete_topic(self, topic: str) -> None:
        """Have the owner delete a topic; returns once it is gone."""
        await self._ask(topic, "delete")
        async with asyncio.timeout(UNLOAD_SECONDS):
            while self._store.get(keys.topic_record(topic)) is not None:
                await self._clock.sleep(_LOOK_SECONDS)

    def _check_known(self, broker: BrokerId) -> None:
        if broker not in self._directory.view.brokers:
            known = ", ".join(str(each) for each in sorted(self._directory.view.brokers))
            raise NotFound(f"broker {broker} is not registered; there are {known}")

    async def _set_state(self, broker: BrokerId, state: BrokerState) -> None:
        await self._store.put(keys.broker_state(broker), encode(state))

    async def _ask(self, topic: str, reason: MoveReason) -> None:
        view = self._directory.read()
        owner = view.owners.get(topic)
        if owner is None or topic in view.markers:
            return  # It is changing hands already.
        if owner.broker not in view.brokers:
            raise Unavailable(f"topic {topic} belongs to broker {owner.broker}, which is not there")
        if reason != "delete" and (stays := self._staying.reason(topic)) is not None:
            raise Conflict(stays)
        step = ask_for(view, topic, reason, self._clock.now_ms())
        with suppress(Conflict):  # Somebody else has just asked.
            await self._store.transact(step.conditions, step.operations)

    async def _move(self, topic: str, epoch: int, reason: MoveReason, seconds_max: float) -> None:
        """Ask for a move, unless it has happened, and wait until a later epoch has an owner."""
        try:
            async with asyncio.timeout(seconds_max):
                if not self._has_moved(topic, epoch):
                    await self._ask(topic, reason)
                while not self._has_moved(topic, epoch):
                    await self._clock.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise Unavailable(
                f"{topic} did not move within {seconds_max:.0f} s; the move goes on, see "
                "`danube brokers list` and the log of its broker"
            ) from None

    def _has_moved(self, topic: str, epoch: int) -> bool:
        owner = self._directory.view.owners.get(topic)
        return owner is not None and owner.epoch > epoch
