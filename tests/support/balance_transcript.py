"""Plays transcripts of rebalancing: what happens above `----`, what is decided below.

A block is a list of commands, `----`, and what they led to; an empty line ends it. `#` begins a
comment. Topics are named after the broker they began at: b1-0, b1-1, …

    settings STRATEGY LEVEL [interval=S] [hourly=N] [cycle=N] [cooldown=S] [age=S] [brokers=N]
             [never=PATTERN]        times are in seconds
    broker ID MB/S …                a broker with topics of those rates; `20x0` are 20 without load
    mode ID active|draining|drained
    rate TOPIC MB/S                 a topic has become busier or quieter
    pass SECONDS                    time goes by
    look                            the leader decides, and carries out what it decided
    fail                            the leader decides, and the first move fails
    ask [N]                         somebody asks for moves (at most N) to be shown: a dry run
    place NAME                      a new topic needs a broker
    show                            the scores
"""

from collections.abc import Callable, Iterator

import msgspec

from pydanube.balance.cluster import BrokerLoad, ClusterLoad, Figures, ServedTopic
from pydanube.balance.decisions import Decision, RebalanceRequest
from pydanube.balance.history import History
from pydanube.balance.imbalance import measure
from pydanube.balance.placement import choose_broker
from pydanube.balance.rebalancing import decide
from pydanube.balance.settings import RebalanceSettings
from pydanube.balance.topic_patterns import TopicPatterns
from pydanube.model.ids import BrokerId
from tests.support.balance_builders import HOUR_MS, NOW_MS

SEPARATOR = "----"


def rewritten(text: str) -> str:
    """Return the transcript with the answers that are given now."""
    player = _Player()
    return "\n\n".join(_block(block, player) for block in text.strip().split("\n\n")) + "\n"


def _block(block: str, player: "_Player") -> str:
    above = block.split(f"\n{SEPARATOR}", 1)[0]
    commands = [line for line in above.splitlines() if line and not line.startswith("#")]
    answers = [answer for line in commands for answer in player.play(line)]
    return "\n".join([above, SEPARATOR, *answers]) if commands else above


class _Player:
    def __init__(self) -> None:
        self._cluster = ClusterLoad(brokers={})
        self._settings = RebalanceSettings(enabled=True)
        self._history = History()
        self._now_ms = NOW_MS
        self._last_chosen: BrokerId | None = None

    def play(self, line: str) -> Iterator[str]:
        name, *words = line.split()
        commands: dict[str, Callable[..., Iterator[str]]] = {
            "settings": self._set,
            "broker": self._broker,
            "mode": self._mode,
            "rate": self._rate,
            "pass": self._pass,
            "look": self._look,
            "fail": self._fail,
            "ask": self._ask,
            "place": self._place,
            "show": self._show,
        }
        return commands[name](*words)

    def _set(self, strategy: str, level: str, *words: str) -> Iterator[str]:
        options = dict(word.split("=") for word in words)
        self._settings = msgspec.structs.replace(
            RebalanceSettings(enabled=True),
            strategy=strategy,
            level=level,
            check_interval_ms=int(options.pop("interval", "300")) * 1000,
            moves_per_hour_max=int(options.pop("hourly", "10")),
            moves_per_cycle_max=int(options.pop("cycle", "1")),
            cooldown_ms=int(options.pop("cooldown", "60")) * 1000,
            topic_age_min_ms=int(options.pop("age", "300")) * 1000,
            brokers_min=int(options.pop("brokers", "2")),
            report_age_max_ms=1_000 * HOUR_MS,
            blacklist=TopicPatterns(filter(None, [options.pop("never", "")])),
        )
        assert not options, options
        yield from ()

    def _broker(self, number: str, *rates: str) -> Iterator[str]:
        broker = BrokerLoad(broker=BrokerId(int(number)), reported_ms=NOW_MS)
        broker = msgspec.structs.replace(broker, figures=Figures(memory=1.0))
        for rate in rates:
            count, _, each = rate.rpartition("x")
            for _ in range(int(count or "1")):
                topic = f"/default/b{number}-{len(broker.topics)}"
                broker = broker.with_topic(topic, _topic(float(each), 0))
        self._replace(broker)
        yield from ()

    def _mode(self, number: str, mode: str) -> Iterator[str]:
        self._replace(msgspec.structs.replace(self._of(number), mode=mode))
        yield from ()

    def _rate(self, name: str, rate: str) -> Iterator[str]:
        topic = f"/default/{name}"
        owner = self._cluster.owner_of(topic)
        assert owner is not None
        broker = self._cluster.brokers[owner]
        since_ms = broker.topics[topic].served_since_ms
        self._replace(broker.without_topic(topic).with_topic(topic, _topic(float(rate), since_ms)))
        yield from ()

    def _pass(self, seconds: str) -> Iterator[str]:
        self._now_ms += int(seconds) * 1000
        yield from ()

    def _look(self) -> Iterator[str]:
        return self._decide(failure=None)

    def _fail(self) -> Iterator[str]:
        return self._decide(failure="the target went away")

    def _decide(self, failure: str | None) -> Iterator[str]:
        decision = decide(self._cluster, self._settings, self._history, self._now_ms)
        self._history = self._history.after_decision(decision, self._now_ms)
        yield from self._told(decision)
        for move in decision.moves:
            self._history = self._history.after_move(move, self._now_ms, failure)
            if failure is None:
                self._cluster = self._cluster.with_assignment(move.topic, move.target)
                self._arrive(move.topic, move.target)
            self._now_ms += self._settings.cooldown_ms

    def _ask(self, moves_max: str | None = None) -> Iterator[str]:
        request = RebalanceRequest(moves_max=None if moves_max is None else int(moves_max))
        decision = decide(self._cluster, self._settings, self._history, self._now_ms, request)
        return self._told(decision)

    def _told(self, decision: Decision) -> Iterator[str]:
        yield f"{decision.outcome}: {decision.reason}"
        for move in decision.moves:
            name = move.topic.removeprefix("/default/")
            yield f"  {name} from {move.source} to {move.target}: {move.reason}"
        if not decision.moves:
            yield f"  again in {(decision.next_check_ms - self._now_ms) / 1000:g} s"

    def _place(self, name: str) -> Iterator[str]:
        topic = f"/default/{name}"
        strategy = self._settings.strategy
        placement = choose_broker(self._cluster, topic, strategy, last_chosen=self._last_chosen)
        yield placement.reason
        if placement.broker is not None:
            self._last_chosen = placement.broker
            self._cluster = self._cluster.with_assignment(topic, placement.broker)

    def _show(self) -> Iterator[str]:
        balance = measure(self._cluster.active, self._settings.strategy)
        for each in balance.brokers:
            marks = " overloaded" * each.is_overloaded + " underloaded" * each.is_underloaded
            yield f"broker {each.broker}: {each.load:.2f}, {each.topic_count} topics{marks}"
        yield f"imbalance {balance.coefficient_of_variation:.3f}"

    def _arrive(self, topic: str, target: BrokerId) -> None:
        broker = self._cluster.brokers[target]
        served = msgspec.structs.replace(broker.topics[topic], served_since_ms=self._now_ms)
        self._replace(msgspec.structs.replace(broker, topics={**broker.topics, topic: served}))

    def _of(self, number: str) -> BrokerLoad:
        return self._cluster.brokers[BrokerId(int(number))]

    def _replace(self, broker: BrokerLoad) -> None:
        brokers = {**self._cluster.brokers, broker.broker: broker}
        self._cluster = ClusterLoad(brokers=dict(sorted(brokers.items())))


def _topic(rate: float, since_ms: int | None) -> ServedTopic:
    return ServedTopic(figures=Figures(topics=1.0, megabytes=rate), served_since_ms=since_ms)
