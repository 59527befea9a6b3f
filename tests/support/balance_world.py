"""A cluster in virtual time: brokers count, report and serve; the leader looks and moves.

Nothing but the decisions is the product's: load is drawn by seed, a move takes a moment, and
reports are as old as the interval lets them be.
"""

import random
from collections.abc import Mapping

from pydanube.balance.cluster import BrokerMode, ClusterLoad, cluster_load
from pydanube.balance.decisions import Decision
from pydanube.balance.history import History, MoveRecord
from pydanube.balance.imbalance import measure
from pydanube.balance.measuring import BrokerCounters, TopicCounters, report_between
from pydanube.balance.rebalancing import decide
from pydanube.balance.reports import LoadReport, decode_report, encode_report
from pydanube.balance.settings import RebalanceSettings
from pydanube.model.ids import BrokerId
from pydanube.model.machine_counters import MachineCounters
from tests.support.balance_builders import HOUR_MS, NOW_MS

REPORT_MS = 30_000
CORES = 4.0
CPU_SECONDS_PER_MEGABYTE = 0.04
MESSAGE_BYTES = 1_000


class BalanceWorld:
    """Topics with rates around their own mean, spread over brokers, and one leader."""

    def __init__(
        self,
        seed: int,
        *,
        rates: Mapping[str, float],
        owners: Mapping[str, BrokerId],
        noise: float,
    ) -> None:
        self.now_ms = NOW_MS
        self.owners = dict(owners)
        self.modes: dict[BrokerId, BrokerMode] = dict.fromkeys(
            sorted(set(owners.values())), "active"
        )
        self.history = History()
        self.decisions: list[Decision] = []
        self._random = random.Random(seed)
        self._rates = dict(rates)
        self._noise = noise
        self._served_since_ms = dict.fromkeys(owners, 0)
        self._bytes = dict.fromkeys(owners, 0.0)
        self._bytes_of_broker = dict.fromkeys(self.modes, 0.0)
        self._looks: dict[BrokerId, BrokerCounters] = {}
        self._reports: dict[BrokerId, LoadReport] = {}
        self._report()
        self._pass(REPORT_MS)

    def run(
        self, settings: RebalanceSettings, hours_max: float, *, until_rest: bool = False
    ) -> None:
        """Let the leader look whenever it should, that long or until the cluster rests."""
        until_ms = self.now_ms + hours_max * HOUR_MS
        while self.now_ms < until_ms:
            decision = decide(self.view(), settings, self.history, self.now_ms)
            self.decisions.append(decision)
            self.history = self.history.after_decision(decision, self.now_ms)
            for move in decision.moves:
                self._move(move.topic, move.target)
                self.history = self.history.after_move(move, self.now_ms)
                self._pass(settings.cooldown_ms)
            self._pass(max(1, decision.next_check_ms - self.now_ms))
            if until_rest and decision.outcome in ("balanced", "nothing_helps"):
                return

    def view(self) -> ClusterLoad:
        """What the leader knows."""
        return cluster_load(self._reports.values(), self.modes, self.owners)

    def variation(self, settings: RebalanceSettings) -> float:
        """How uneven the cluster looks now."""
        return measure(self.view().active, settings.strategy).coefficient_of_variation

    def uneven_rates(self) -> float:
        """How uneven it truly is, by bytes alone."""
        loads = dict.fromkeys(self.modes, 0.0)
        for topic, broker in self.owners.items():
            loads[broker] += self._rates[topic]
        mean = sum(loads.values()) / len(loads)
        variance = sum((load - mean) ** 2 for load in loads.values()) / len(loads)
        return float(variance**0.5 / mean)

    @property
    def moves(self) -> tuple[MoveRecord, ...]:
        """What has moved."""
        return self.history.moves

    def _move(self, topic: str, target: BrokerId) -> None:
        assert self.modes[target] == "active"
        self.owners[topic] = target
        self._served_since_ms[topic] = self.now_ms
        self._bytes[topic] = 0.0

    def _pass(self, ms: int) -> None:
        """Let time go by. Of the reports in between only the last two are made: the one that
        counts, and the one it is compared with."""
        end_ms = self.now_ms + ms
        last_ms = end_ms // REPORT_MS * REPORT_MS
        for report_ms in (last_ms - REPORT_MS, last_ms):
            if report_ms > self.now_ms:
                self._publish((report_ms - self.now_ms) / 1000)
                self.now_ms = report_ms
                self._report()
        self._publish((end_ms - self.now_ms) / 1000)
        self.now_ms = end_ms

    def _publish(self, seconds: float) -> None:
        for topic, broker in self.owners.items():
            noise = self._random.uniform(1 - self._noise, 1 + self._noise)
            sent = self._rates[topic] * 1_000_000 * seconds * noise
            self._bytes[topic] += sent
            self._bytes_of_broker[broker] += sent

    def _report(self) -> None:
        topics: dict[BrokerId, dict[str, TopicCounters]] = {broker: {} for broker in self.modes}
        for topic, broker in self.owners.items():
            topics[broker][topic] = TopicCounters(
                topic_name=topic,
                served_since_ms=self._served_since_ms[topic],
                messages_in=int(self._bytes[topic]) // MESSAGE_BYTES,
                bytes_in=int(self._bytes[topic]),
                messages_out=int(self._bytes[topic]) // MESSAGE_BYTES,
                bytes_out=int(self._bytes[topic]),
                producer_count=1,
                consumer_count=1,
                subscription_count=1,
                backlog_messages=self._random.randrange(100),
            )
        for broker in self.modes:
            look = BrokerCounters(
                at_ms=self.now_ms, machine=self._machine(broker), topics=topics[broker]
            )
            report = report_between(broker, self._looks.get(broker), look)
            self._looks[broker] = look
            self._reports[broker] = decode_report(encode_report(report))

    def _machine(self, broker: BrokerId) -> MachineCounters:
        total = self._bytes_of_broker[broker]
        idle_cores = 0.02 * CORES
        return MachineCounters(
            at_ms=self.now_ms,
            cpu_seconds=idle_cores * self.now_ms / 1000
            + total / 1_000_000 * CPU_SECONDS_PER_MEGABYTE,
            cpu_cores=CORES,
            memory_used_bytes=30 + self._random.randrange(3),
            memory_limit_bytes=100,
            disk_bytes=int(total),
            network_bytes=int(2 * total),
        )
