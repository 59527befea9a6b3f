"""Runs the jobs: systems in turns, every worker and every server in a process of its own."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

from pydanube.bench.driver import Server, System
from pydanube.bench.jobs import JOBS, PAYLOAD_BYTES, Job
from pydanube.bench.machine import describe_disk, describe_machine
from pydanube.bench.results import Measurement, Report, rows_of
from pydanube.bench.worker import Assignment, Outcome
from pydanube.errors import DanubeError

Step = Callable[[str], None]
"""Is told what begins."""
Told = Callable[[str], None]
"""Is told what came out of a step."""


class Plan(Struct, frozen=True, kw_only=True):
    """What to run."""

    rounds: int = 3
    seconds: float = 3.0
    """Of publishing, per job."""
    jobs: tuple[str, ...] = tuple(job.name for job in JOBS)
    payload_bytes: int = PAYLOAD_BYTES
    directory: Path
    """Where servers keep what they store, in directories of the moment."""

    def steps(self, systems: Sequence[System]) -> int:
        """Return how many steps will be told of."""
        return self.rounds * sum(len(self.jobs_of(system)) for system in systems)

    def jobs_of(self, system: System) -> list[Job]:
        """Return the jobs for one system, in order."""
        return [job for job in JOBS if job.name in self.jobs and job.name in system.jobs]


class WorkerFailed(DanubeError):
    """A publisher or consumer ended before its job did."""


class Worker:
    """A publisher or consumer in a process of its own, ready to begin."""

    def __init__(self, assignment: Assignment) -> None:
        self._what = f"{assignment.job} at {assignment.url}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pydanube.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._say(msgspec.json.encode(assignment).decode())
            self._hear()
        except BaseException:
            self.stop()  # Nobody else knows of it yet.
            raise

    def begin(self) -> None:
        """Let it go."""
        self._say("go")

    def outcome(self) -> Outcome:
        """Wait for what it measured."""
        outcome = msgspec.json.decode(self._hear(), type=Outcome)
        self._process.wait()
        return outcome

    def stop(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None, "it was given one"
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None, "it was given one"
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"the worker for {self._what} failed; its output is above")
        return line


def run_rounds(
    plan: Plan, systems: Sequence[System], step: Step, told: Told = lambda _: None
) -> Report:
    """Measure every system that is present, in turns, and return what came out."""
    absent = {system.notes.name: system.absence() for system in systems}
    present = [system for system in systems if absent[system.notes.name] is None]
    measurements: list[Measurement] = []
    disk = describe_disk(plan.directory)
    for number in range(plan.rounds):
        for system in present:
            measurements += _measure(plan, system, number, step, told)
    notes = [system.notes for system in present]
    return Report(
        machine=describe_machine(),
        disk=disk,
        rounds=plan.rounds,
        seconds=plan.seconds,
        systems=notes,
        absent=[line for line in absent.values() if line is not None],
        rows=rows_of(measurements, notes, plan.payload_bytes),
        measurements=measurements,
    )


def _measure(plan: Plan, system: System, number: int, step: Step, told: Told) -> list[Measurement]:
    """Run all jobs of one system over one fresh server."""
    directory = Path(tempfile.mkdtemp(prefix="danube-bench-", dir=plan.directory))
    try:
        server = system.start(directory)
        try:
            measurements = []
            for job in plan.jobs_of(system):
                what = f"round {number + 1}: {system.notes.name}, {job.title}"
                step(what)
                measured = _run_job(plan, system, server, job, number)
                measurements.append(measured)
                told(f"{what}: {measured.messages / measured.seconds:,.0f} msg/s")
            return measurements
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run_job(plan: Plan, system: System, server: Server, job: Job, number: int) -> Measurement:
    # A backlog is what `publish` has left behind.
    topic = f"bench-{psutil.Process().pid}-{number}-{job.name if job.publishes else 'publish'}"
    workers: list[Worker] = []

    def worker(*, publishes: bool) -> Worker:
        assignment = Assignment(
            link=system.link,
            url=server.url,
            topic=topic,
            job=job.name,
            payload_bytes=plan.payload_bytes,
            seconds=plan.seconds,
            publishes=publishes,
        )
        workers.append(Worker(assignment))
        return workers[-1]

    try:
        publisher = worker(publishes=True) if job.publishes else None
        consumer = worker(publishes=False) if job.consumes else None
        before = _cpu_seconds(server)
        for each in (consumer, publisher):
            if each is not None:
                each.begin()
        published = publisher.outcome() if publisher is not None else None
        consumed = consumer.outcome() if consumer is not None else None
        cpu = _cpu_seconds(server) - before
    finally:
        for each in workers:
            each.stop()
    return _measurement(system, job, number, published, consumed, cpu)


def _measurement(
    system: System,
    job: Job,
    number: int,
    published: Outcome | None,
    consumed: Outcome | None,
    server_cpu: float,
) -> Measurement:
    outcomes = [each for each in (published, consumed) if each is not None]
    if published is not None and consumed is not None and consumed.messages < published.messages:
        raise WorkerFailed(
            f"{system.notes.name} delivered {consumed.messages} of {published.messages} messages"
        )
    messages = max(1, outcomes[-1].messages)
    return Measurement(
        system=system.notes.name,
        job=job.name,
        round=number,
        messages=messages,
        seconds=outcomes[-1].ended - outcomes[0].began,
        server_cpu_us=server_cpu / messages * 1e6,
        client_cpu_us=sum(each.cpu_seconds for each in outcomes) / messages * 1e6,
        acknowledged=published.latencies if published is not None else None,
        received=consumed.latencies if consumed is not None else None,
    )


def _cpu_seconds(server: Server) -> float:
    total = 0.0
    for pid in server.pids:
        times = psutil.Process(pid).cpu_times()
        total += times.user + times.system
    return total
