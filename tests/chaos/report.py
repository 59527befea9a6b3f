"""What a run is summed up to: a table for each storage mode, and a sentence for each violation."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.history import Deed
from tests.chaos.laws import Evidence, find_violations, longest_pauses, lost, unseen
from tests.chaos.schedule import FAULTS, TOPIC_DEEDS, Schedule
from tests.support.checkers import Violation

SHOWN_MAX = 40


@dataclass(frozen=True)
class Report:
    """The figures of one storage mode."""

    storage: str
    faults: dict[str, str]
    """How often each step was taken, and for how many seconds in all."""
    figures: dict[str, str]
    by_topic: list[list[str]]
    violations: list[Violation] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        laws = Counter(violation.law for violation in self.violations)
        lines = [f"## storage.mode: {self.storage}", ""]
        lines += _table(
            ["fault", "times and seconds"], [list(pair) for pair in self.faults.items()]
        )
        lines += _table(["", self.storage], [list(pair) for pair in self.figures.items()])
        lines += _table(
            [
                "topic, subscription",
                "in the log",
                "acknowledged",
                "lost",
                "delivered again",
                "unseen",
            ],
            self.by_topic,
        )
        lines += [f"- **{law}**: {count}" for law, count in laws.items()]
        lines += [f"  - {violation}" for violation in self.violations[:SHOWN_MAX]]
        return "\n".join(lines)


def report_on(evidence: Evidence, schedule: Schedule) -> Report:
    """Judge, and count."""
    violations = find_violations(evidence)
    history = evidence.history
    pauses = longest_pauses(evidence)
    longest = max(pauses, key=lambda pause: pause.seconds)
    sends = Counter(send.outcome for send in history.sends)
    acks = Counter(ack.outcome for ack in history.acks)
    laws = Counter(violation.law for violation in violations)
    events = Counter(deed.kind for deed in history.deeds)
    figures = {
        "seconds under load": f"{evidence.ended - evidence.began:.0f}",
        "acknowledged": str(sends["ok"]),
        "refused or unknown": str(sends["failed"] + sends["unknown"]),
        "deliveries": str(len(history.deliveries)),
        "acks answered, late ones": f"{acks['ok']}, {sum(ack.late for ack in history.acks)}",
        "lost": str(sum(len(lost(evidence, topic)) for topic in evidence.topics)),
        "repeated after an answered ack": str(laws["acked and repeated"]),
        "out of order": str(laws["out of order"] + laws["nonmonotonic send"]),
        "unseen": str(
            sum(
                len(unseen(evidence, topic, plan.name))
                for topic in evidence.topics
                for plan in evidence.subscriptions
            )
        ),
        "brokers that ended by themselves": str(events["ended"]),
        "brokers activated, restarted by hand": f"{events['activated']}, {events['helped']}",
        "longest pause": (
            f"{longest.seconds:.1f} s, {longest.harmed:.1f} s of it explained ({longest.topic})"
        ),
        "longest pause that no fault explains": f"{max(each.excess for each in pauses):.1f} s",
    }
    return Report(
        schedule.storage, _faults(history.deeds), figures, _by_topic(evidence), violations
    )


def _faults(deeds: Sequence[Deed]) -> dict[str, str]:
    done: dict[str, list[float]] = defaultdict(list)
    refused: Counter[str] = Counter()
    for deed in deeds:
        done[deed.kind].append(deed.ended - deed.began)
        refused[deed.kind] += deed.outcome != "ok"
    return {
        kind: f"{len(done[kind])}, {sum(done[kind]):.0f} s"
        + (f", {refused[kind]} refused" if refused[kind] else "")
        for kind in (*FAULTS, *TOPIC_DEEDS)
        if done[kind]
    }


def _by_topic(evidence: Evidence) -> list[list[str]]:
    rows = []
    delivered: Counter[tuple[str, str]] = Counter()
    for each in evidence.history.deliveries:
        delivered[each.topic, each.subscription] += 1
    distinct = {(each.topic, each.subscription, each.value) for each in evidence.history.deliveries}
    different = Counter((topic, subscription) for topic, subscription, _ in distinct)
    for topic in evidence.topics:
        log = evidence.logs.get(topic, {})
        acknowledged = sum(
            send.topic == topic and send.outcome == "ok" for send in evidence.history.sends
        )
        for plan in evidence.subscriptions:
            place = (topic, plan.name)
            rows.append(
                [
                    f"{topic} {plan.name}",
                    str(len(log)),
                    str(acknowledged),
                    str(len(lost(evidence, topic))),
                    str(delivered[place] - different[place]),
                    str(len(unseen(evidence, *place))),
                ]
            )
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]
