"""What others feel while somebody breaks a limit of the HTTP/2 engine.

python -m benchmarks.attacks [--only NAME …] [--rounds 3] [--seconds 2] [--rate 10]
    [--cores shared|divided] [--control]

A broker, a stock client that publishes at a steady rate, and an attacker, each in a process of its
own. Rounds with and without the attacker take turns; the attack starts anew so many times a second,
on new connections. The processes share the machine's cores; `divided`, the broker has one to
itself, and client and attacker, which stand for other machines, another one. With `--control` each
attack is made on a second broker as well, which the client has nothing to do with: what it feels of
that is no doing of its own broker.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.attacker import HONEST
from benchmarks.cores import CHOICES, Cores, keep_on
from benchmarks.machine import describe_machine
from tests.support.broker_process import BrokerProcess
from tests.support.http2_attacks import ATTACKS

CALLS_PER_SECOND = 500
IMPATIENT = [sys.executable, "-m", "benchmarks.impatient_broker"]
LEAD_SECONDS = 0.2
"""So long the attack goes on before and after what is timed."""


class Process:
    """A program of this folder that is told by its input when to go."""

    def __init__(self, core: int | None, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer_line() == "ready"
        keep_on(core, self._process.pid)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def answer(self) -> dict[str, float]:
        answer: dict[str, float] = json.loads(self.answer_line())
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Rounds(NamedTuple):
    """What was measured with one attack: pairs of rounds, without and with it."""

    quiet: list[dict[str, float]]
    attacked: list[dict[str, float]]
    attackers: list[dict[str, float]]
    broker_cpu: list[float]


class Scene:
    """A broker and its honest client, and whom else to attack."""

    def __init__(
        self, broker: BrokerProcess, other: BrokerProcess | None, seconds: float, cores: Cores
    ) -> None:
        self._broker = broker
        self._other = other
        self._seconds = seconds
        self._cores = cores
        keep_on(cores.broker, broker.pid)
        if other is not None:
            keep_on(cores.broker, other.pid)
        target = f"127.0.0.1:{broker.client_port}"
        self._client = Process(cores.others, "steady_client", target, str(CALLS_PER_SECOND))

    def close(self) -> None:
        self._client.end()

    def _measure(self) -> dict[str, float]:
        self._client.tell(str(self._seconds))
        return self._client.answer()

    def play(self, name: str, rounds: int, rate: float) -> dict[str, Rounds]:
        """Measure an attack, on the client's broker and on the other one, if there is one."""
        victims = {name: self._broker}
        if self._other is not None:
            victims[f"{name}, on another broker"] = self._other
        found = {title: Rounds([], [], [], []) for title in victims}
        for _ in range(rounds):
            for title, victim in victims.items():
                self._play_once(name, victim, rate, found[title])
        return found

    def _play_once(self, name: str, victim: BrokerProcess, rate: float, found: Rounds) -> None:
        arguments = {"seconds": self._seconds + 2 * LEAD_SECONDS, "rate": rate}
        attacker = Process(
            self._cores.others, "attacker", name, str(victim.client_port), json.dumps(arguments)
        )
        process = psutil.Process(victim.pid)
        try:
            found.quiet.append(self._measure())
            before = process.cpu_times()
            attacker.tell("go")
            found.attacked.append(self._measure())
            found.attackers.append(attacker.answer())
            after = process.cpu_times()
            spent = after.user + after.system - before.user - before.system
            found.broker_cpu.append(spent / arguments["seconds"])
        finally:
            attacker.end()


@contextmanager
def scene(impatient: bool, control: bool, seconds: float, cores: Cores) -> Iterator[Scene]:
    command = IMPATIENT if impatient else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(BrokerProcess(folder / "data", command=command))
        other = None
        if control:
            other = stack.enter_context(BrokerProcess(folder / "other", command=command))
        played = Scene(broker, other, seconds, cores)
        stack.callback(played.close)
        yield played


def show(title: str, name: str, rounds: Rounds) -> None:
    def median(measured: list[dict[str, float]], key: str) -> float:
        return statistics.median(each[key] for each in measured)

    quiet, attacked = median(rounds.quiet, "p99_ms"), median(rounds.attacked, "p99_ms")
    limit = ATTACKS[name].limit if name in ATTACKS else "none"
    connections = sum(each["connections"] for each in rounds.attackers)
    cut_off = sum(each["cut_off"] for each in rounds.attackers)
    print(
        f"| {title} | {limit} "
        f"| {median(rounds.quiet, 'p50_ms'):.2f} / {quiet:.2f} "
        f"| {median(rounds.attacked, 'p50_ms'):.2f} / {attacked:.2f} | {attacked / quiet:.1f} "
        f"| {connections:,.0f} | {cut_off:,.0f} | {statistics.median(rounds.broker_cpu):.0%} |",
        flush=True,
    )


def needs_impatience(name: str) -> bool:
    """Tell whether the limit is out of reach of a round when it has its usual value."""
    attack = ATTACKS.get(name)
    return attack is not None and bool(attack.limits) and "streams_max" not in attack.limits


def main() -> None:
    names = [HONEST, *ATTACKS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks")
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--cores", choices=CHOICES, default="shared")
    parser.add_argument("--control", action="store_true")
    arguments = parser.parse_args()
    print(
        f"{arguments.rounds} interleaved rounds of {arguments.seconds:g} s, medians; "
        f"{CALLS_PER_SECOND} calls/s; {arguments.rate:g} attacks/s; cores {arguments.cores}; "
        f"{describe_machine()}\n"
    )
    print(
        "| attack | limit | quiet p50 / p99 ms | attacked p50 / p99 ms | p99 ratio "
        "| connections | cut off | broker CPU |\n|---|---|---|---|---|---|---|---|"
    )
    cores = Cores.chosen(arguments.cores)
    for impatient in (False, True):
        chosen = [name for name in arguments.only if needs_impatience(name) == impatient]
        if chosen:
            with scene(impatient, arguments.control, arguments.seconds, cores) as played:
                for name in chosen:
                    for title, rounds in played.play(
                        name, arguments.rounds, arguments.rate
                    ).items():
                        show(title, name, rounds)


if __name__ == "__main__":
    main()
