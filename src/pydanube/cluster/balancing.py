"""Keeps the load even: every broker reports, and the leader moves topics where it helps."""

import asyncio
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from pydanube.balance.cluster import ClusterLoad, cluster_load
from pydanube.balance.decisions import Decision, Move, Outcome, RebalanceRequest
from pydanube.balance.history import (
    History,
    decode_move,
    encode_move,
    restored_history,
    surplus_keys,
)
from pydanube.balance.imbalance import Balance, measure
from pydanube.balance.measuring import BrokerCounters, report_between
from pydanube.balance.placement import choose_broker
from pydanube.balance.rebalancing import decide
from pydanube.balance.reports import decode_report, encode_report
from pydanube.balance.settings import RebalanceSettings
from pydanube.cluster.directory import Directory
from pydanube.cluster.leader import Leader
from pydanube.cluster.membership import Membership
from pydanube.cluster.planning import Chooser, ask_for
from pydanube.cluster.staying import Staying
from pydanube.cluster.view import ClusterView
from pydanube.errors import DanubeError
from pydanube.metadata import keys
from pydanube.metadata.store import Delete, MetadataStore, Operation, Put
from pydanube.model.ids import BrokerId
from pydanube.observability.distribution import Distribution
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock

LOOK_SECONDS = 1.0
MOVE_SECONDS_MAX = 30.0
"""A move that takes longer counts as failed; the owner goes on with it all the same."""
_WATCH_SECONDS = 0.05

_log = get_logger(__name__)

Count = Callable[[], BrokerCounters]
"""Looks at the broker and its topics."""


class BalanceSettings(Struct, frozen=True, kw_only=True):
    """How often brokers report, and what may be moved."""

    report_seconds: float
    rebalance: RebalanceSettings


_NO_CYCLE: tuple[Outcome, ...] = ("disabled", "not_due")


class Balancing:
    """One broker's part in it; what only the leader does, the others leave to it."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        directory: Directory,
        membership: Membership,
        leader: Leader,
        clock: Clock,
        count: Count,
        settings: BalanceSettings,
        first_report_seconds: float,
        staying: Staying,
    ) -> None:
        self._store = store
        self._directory = directory
        self._membership = membership
        self._leader = leader
        self._clock = clock
        self._count = count
        self._settings = settings
        self._first_report_seconds = first_report_seconds
        self._staying = staying
        self._history: History | None = None
        self._last_chosen: BrokerId | None = None
        self._moving = asyncio.Lock()
        """One series of moves at a time, scheduled or asked for."""
        self.moves = 0
        self.failures = 0
        self.cycle_seconds = Distribution()
        """How long looks took that were due, with the moves they led to."""

    # Every broker.

    async def report(self) -> None:
        """Tell the others how busy this broker is, again and again."""
        before: BrokerCounters | None = None
        pause = self._first_report_seconds
        while True:
            await self._clock.sleep(pause)
            pause = self._settings.report_seconds
            after = self._count()
            report = report_between(self._membership.broker, before, after)
            before = after
            lease = self._membership.lease
            if lease is None:
                continue
            try:
                # Bound to the lease: a broker that is gone has no load.
                key = keys.load_report(self._membership.broker)
                await self._store.put(key, encode_report(report), lease=lease)
            except DanubeError as error:
                _log.warning(
                    "could not report the load; trying again at the next report", cause=str(error)
                )

    def choose(self, topic: str, brokers: Sequence[BrokerId]) -> BrokerId:
        """Return which of several living brokers takes a topic."""
        load = self.load(only=brokers)
        found = choose_broker(
            load, topic, self._settings.rebalance.strategy, last_chosen=self._last_chosen
        ).broker
        chosen = found if found is not None else brokers[0]
        self._last_chosen = chosen
        return chosen

    def chooser(self) -> Chooser:
        """Return who chooses for several topics in a row, and reckons with its own choices."""
        load = self.load()

        def choose(topic: str, brokers: Sequence[BrokerId]) -> BrokerId:
            nonlocal load
            known = {each: load.brokers[each] for each in brokers if each in load.brokers}
            some = ClusterLoad(brokers=known)
            chosen = choose_broker(some, topic, self._settings.rebalance.strategy).broker
            if chosen is None:  # They have come this very moment.
                return brokers[0]
            load = load.with_assignment(topic, chosen)
            return chosen

        return choose

    def load(self, *, only: Sequence[BrokerId] | None = None) -> ClusterLoad:
        """Return the load of all living brokers, or of some, as they last reported it."""
        view = self._directory.view
        modes = {
            broker: view.state(broker).mode
            for broker in view.brokers
            if only is None or broker in only
        }
        reports = [decode_report(each.value) for each in self._store.list(keys.LOAD_REPORTS)]
        return cluster_load(reports, modes, _owners(view, modes))

    def balance(self) -> Balance:
        """Return how even the load is."""
        return measure(self.load().active, self._settings.rebalance.strategy)

    # The leader.

    async def rebalance(self) -> None:
        """Move topics when that is due, while this broker leads."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            if self._leader.term is None:
                self._history = None
                continue
            try:
                async with self._moving:
                    await self._look()
            except DanubeError as error:
                _log.warning("rebalancing waits", cause=str(error))

    async def _look(self) -> None:
        now_ms, began = self._clock.now_ms(), self._clock.monotonic_seconds()
        history = self._history or self._restored()
        decision = decide(self.load(), self._settings.rebalance, history, now_ms)
        self._history = history.after_decision(decision, now_ms)
        if decision.outcome in _NO_CYCLE:
            return
        await self._carry_out_all(decision)
        self.cycle_seconds.observe(self._clock.monotonic_seconds() - began)

    async def _carry_out_all(self, decision: Decision) -> None:
        for number, move in enumerate(decision.moves):
            if number:
                await self._clock.sleep(self._settings.rebalance.cooldown_ms / 1000)
            if self._leader.term is None:
                return
            await self._carry_out(move)

    def plan(self, moves_max: int | None) -> Decision:
        """Return what somebody's wish for a better balance would lead to; nothing happens."""
        history = self._history or self._restored()
        request = RebalanceRequest(moves_max=moves_max)
        return decide(self.load(), self._settings.rebalance, history, self._clock.now_ms(), request)

    async def rebalance_now(self, moves_max: int | None) -> list[Move]:
        """Carry out what `plan` says; return what was moved."""
        async with self._moving:
            return [move for move in self.plan(moves_max).moves if await self._carry_out(move)]

    async def _carry_out(self, move: Move) -> bool:
        failure = await self._move(move)
        now_ms = self._clock.now_ms()
        self._history = (self._history or self._restored()).after_move(move, now_ms, failure)
        if failure is None:
            self.moves += 1
            _log.info("moved", topic=move.topic, target=move.target, reason=move.reason)
        else:
            self.failures += 1
            _log.warning("a move failed", topic=move.topic, target=move.target, cause=failure)
        await self._record(self._history)
        return failure is None

    async def _move(self, move: Move) -> str | None:
        """Carry a move out; return why that failed."""
        view = self._directory.read()
        owner = view.owners.get(move.topic)
        if owner is None or owner.broker != move.source:
            return "the topic is elsewhere by now"
        if (stays := self._staying.reason(move.topic)) is not None:
            return stays
        step = ask_for(
            view,
            move.topic,
            "rebalance",
            self._clock.now_ms(),
            to=move.target,
            why=move.reason,
        )
        if not await self._leader.carry_out(step):
            return "something else happened to the topic"
        deadline = self._clock.monotonic_seconds() + MOVE_SECONDS_MAX
        while self._clock.monotonic_seconds() < deadline:
            if self._directory.owner_of(move.topic) == move.target:
                return None
            await self._clock.sleep(_WATCH_SECONDS)
        return f"not done within {MOVE_SECONDS_MAX:.0f} s"

    def _restored(self) -> History:
        return restored_history(
            decode_move(each.value) for each in self._store.list(keys.REBALANCING_HISTORY)
        )

    async def _record(self, history: History) -> None:
        record = history.moves[-1]
        known = [each.key for each in self._store.list(keys.REBALANCING_HISTORY)]
        operations: list[Operation] = [
            Put(keys.rebalancing_move(record.at_ms, record.number), encode_move(record))
        ]
        operations += [Delete(key) for key in surplus_keys(known)[:100]]
        await self._store.transact([], operations)


def _owners(view: ClusterView, brokers: Collection[BrokerId]) -> dict[str, BrokerId]:
    return {topic: owner.broker for topic, owner in view.owners.items() if owner.broker in brokers}
