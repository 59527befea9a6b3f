"""The duties of the cluster's leader: every topic has an owner, and draining brokers get empty."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from pydanube.cluster.directory import Directory
from pydanube.cluster.membership import Membership
from pydanube.cluster.planning import Chooser, Plan, Step, TopicFacts, plan
from pydanube.cluster.view import ClusterView
from pydanube.errors import Conflict, DanubeError
from pydanube.metadata import keys
from pydanube.metadata.store import Expect, MetadataStore, Put
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.topics.catalog import Catalog

LOOK_SECONDS = 1.0
"""What no change announced is found by looking."""
_SETTLE_SECONDS = 0.02
"""Changes that come together are seen together."""
STEPS_AT_ONCE = 32
_REST = 2.0
"""So much longer than a look takes is the pause before the next."""

_log = get_logger(__name__)


class Leadership(Protocol):
    """Tells whether this broker leads. Two may believe so for a while; only one can act."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads, as far as it knows."""


class Term(Struct, frozen=True):
    """A time of leading: the revision of the leader's key, which every act expects."""

    revision: int


class Leader:
    """Looks at the whole cluster whenever something changes, and carries out what is due.

    Each act expects the leader's key as this broker wrote it, so that one that leads no more, and
    has not noticed, changes nothing.
    """

    def __init__(
        self,
        *,
        store: MetadataStore,
        directory: Directory,
        membership: Membership,
        leadership: Leadership,
        catalog: Catalog,
        clock: Clock,
        chooser: Callable[[], Chooser],
        moves_reliable: bool,
    ) -> None:
        self._store = store
        self._directory = directory
        self._membership = membership
        self._leadership = leadership
        self._catalog = catalog
        self._clock = clock
        self._chooser = chooser
        self._moves_reliable = moves_reliable
        self._wakeup = asyncio.Event()
        self._term: Term | None = None
        self.waiting: dict[str, int] = {}
        """Topics that can be served by one broker alone, which is not there."""

    @property
    def term(self) -> Term | None:
        """The present time of leading, None while another broker leads."""
        return self._term if self._leadership.is_leader else None

    async def run(self) -> None:
        """Do what is due until cancelled."""
        self._directory.wakes(self._wakeup)
        self._membership.tells(self._wakeup.set)
        took_seconds = 0.0
        while True:
            timer = self._clock.call_later(LOOK_SECONDS, self._wakeup.set)
            await self._wakeup.wait()
            timer.cancel()
            await self._clock.sleep(max(_SETTLE_SECONDS, _REST * took_seconds))
            self._wakeup.clear()
            began = self._clock.monotonic_seconds()
            try:
                await self._look()
            except DanubeError as error:
                _log.warning("the leader's duties wait", cause=str(error))
            took_seconds = self._clock.monotonic_seconds() - began

    async def _look(self) -> None:
        if not self._leadership.is_leader or not self._membership.is_certain:
            self._term = None
            return
        if self._term is None or not self._is_mine(self._term):
            self._term = await self._begin()
        found = self._plan(self._directory.read())
        self._tell_waiting(found)
        for first in range(0, len(found.steps), STEPS_AT_ONCE):
            await self._carry_out_together(found.steps[first : first + STEPS_AT_ONCE])

    async def _carry_out_together(self, steps: Sequence[Step]) -> None:
        """Carry out steps of one plan, which concern different topics: they share commits."""
        outcomes = await asyncio.gather(*map(self.carry_out, steps), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _is_mine(self, term: Term) -> bool:
        entry = self._store.get(keys.CLUSTER_LEADER)
        return entry is not None and entry.revision == term.revision

    async def _begin(self) -> Term:
        me = b"%d" % self._membership.broker
        lease = self._membership.lease
        revision = await self._store.transact([], [Put(keys.CLUSTER_LEADER, me, lease)])
        _log.info("leading the cluster", broker=self._membership.broker)
        return Term(revision)

    def _plan(self, view: ClusterView) -> Plan:
        facts = [
            TopicFacts(entry.name, entry.record.strategy, entry.revision)
            for entry in self._catalog.topics_at()
            if not entry.record.deleting or entry.name not in view.owners
        ]
        return plan(
            view,
            facts,
            self._chooser(),
            self._clock.now_ms(),
            moves_reliable=self._moves_reliable,
        )

    def _tell_waiting(self, found: Plan) -> None:
        for topic, broker in found.waiting.items():
            if topic not in self.waiting:
                _log.warning(
                    "a topic waits for its broker, the only one with its newest messages",
                    topic=topic,
                    broker=broker,
                )
        self.waiting = dict(found.waiting)

    async def carry_out(self, step: Step) -> bool:
        """Carry a step out if nothing has changed since it was planned; tell whether."""
        if self._term is None:
            return False
        leading = Expect(keys.CLUSTER_LEADER, self._term.revision)
        try:
            await self._store.transact([leading, *step.conditions], step.operations)
        except Conflict as error:
            _log.info("overtaken by a change; looking again", topic=step.topic, cause=str(error))
            self._wakeup.set()
            return False
        _log.info("decided", topic=step.topic, broker=step.broker, reason=step.reason)
        return True
