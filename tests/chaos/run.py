"""One run in one storage mode: start, work and harm, heal, drain, read everything, judge."""

import asyncio
import ctypes
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydanube import connect
from pydanube.errors import DanubeError
from tests.chaos.ground import Ground, ground
from tests.chaos.history import Deed, Following, History, Scribe, now
from tests.chaos.laws import Evidence, unsettled
from tests.chaos.nemesis import Nemesis
from tests.chaos.operator import Operator
from tests.chaos.report import Report, report_on
from tests.chaos.schedule import SUBSCRIPTIONS, Schedule
from tests.chaos.workload import Workload
from tests.support.recorded_channel import value_of

FOUND = 1
START_SECONDS_MAX = 60.0
LANE_SECONDS_MAX = 180.0
"""So much longer than planned a lane may take; what it has not begun by then is left out."""
READ_SECONDS_MAX = 60.0
LOOK_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1

Logs = dict[str, dict[int, str]]


@dataclass(frozen=True)
class Limits:
    """How much work there is, and how long what may take."""

    messages_a_second: float
    """To each topic."""
    pause_seconds_max: float
    """So long a topic may acknowledge nothing beside what faults explain."""
    drain_seconds_max: float
    """Until all is delivered and acked in the end."""


def report_and_exit(
    schedule: Schedule,
    directory: Path,
    limits: Limits,
    command: Sequence[str] | None,
) -> None:
    """Carry a schedule out below an empty directory, print what came of it, and end the process.

    The process ends with 1 when a law is broken. `command` runs a broker, by default `danube`.
    """
    _end_with_parent()
    with ground(directory, schedule.storage, command=command) as place:
        run = Run(schedule, place, directory, limits)
        report = asyncio.run(run.run())
    (directory / "report.md").write_text(f"{report}\n")
    print(report, flush=True)
    sys.exit(0 if report.kept else FOUND)


def _end_with_parent() -> None:
    """Let SIGTERM, and the parent's end, end this process with its brokers and networks."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Run:
    """The course of events."""

    def __init__(
        self,
        schedule: Schedule,
        ground: Ground,
        directory: Path,
        limits: Limits,
    ) -> None:
        self._schedule = schedule
        self._ground = ground
        self._topics = [topic.name for topic in schedule.topics]
        self._limits = limits
        self._following = Following(directory)
        self._history = History()
        self._scribe = Scribe(directory / "conductor.history")
        self._workload = Workload(
            ground.urls, self._topics, directory, self._scribe, limits.messages_a_second
        )
        self._operator = Operator(ground, self._workload, self._scribe)
        self._nemesis = Nemesis(ground, self._operator, self._scribe)

    async def run(self) -> Report:
        caring = [
            asyncio.create_task(self._nemesis.keep_running()),
            asyncio.create_task(self._nemesis.see_to_drained()),
        ]
        try:
            await self._set_up()
            began = now()
            await self._work_and_harm(began)
            over = now()
            await self._workload.tell("be quiet")
            await self._heal()
            logs = await self._drain()
        finally:
            await self._workload.stop()
            for task in caring:
                task.cancel()
            ended = await asyncio.gather(*caring, return_exceptions=True)
        if failures := [each for each in ended if isinstance(each, Exception)]:
            raise failures[0]  # Nobody saw to the brokers: the run proves nothing.
        self._take_notes()
        self._history.sort()
        evidence = Evidence(
            self._history,
            logs,
            self._topics,
            SUBSCRIPTIONS,
            began,
            over,
            self._limits.pause_seconds_max,
            moves=self._schedule.storage != "local",
        )
        return report_on(evidence, self._schedule)

    async def _set_up(self) -> None:
        for topic in self._schedule.topics:
            await self._operator.create(topic)
        await self._workload.start()
        await self._workload.tell("join")
        await self._workload.tell("publish")
        async with asyncio.timeout(START_SECONDS_MAX):
            while {send.topic for send in self._history.sends} != set(self._topics):
                await asyncio.sleep(LOOK_SECONDS)
                self._take_notes()

    async def _work_and_harm(self, began: float) -> None:
        schedule = self._schedule
        lanes = [
            asyncio.create_task(self._nemesis.run(schedule.harm, began)),
            asyncio.create_task(self._nemesis.run_deeds(schedule.deeds, schedule.topics, began)),
        ]
        await asyncio.sleep(schedule.seconds)
        _, late = await asyncio.wait(lanes, timeout=LANE_SECONDS_MAX)
        for lane in late:
            lane.cancel()
        for lane in await asyncio.gather(*lanes, return_exceptions=True):
            if isinstance(lane, Exception):
                raise lane

    async def _heal(self) -> None:
        self._nemesis.heal()
        if not await self._nemesis.wait_ready():
            self._broken("cluster", "not every broker is ready after everything was healed")

    async def _drain(self) -> Logs:
        """Let every consumer come anew, until each subscription has settled all there is."""
        await self._workload.tell("leave")
        await self._workload.tell("join")
        logs = await self._read_all()
        deadline = now() + self._limits.drain_seconds_max
        while left := self._unsettled(logs):
            if now() > deadline:
                self._broken("cluster", f"never settled: {', '.join(left[:12])}")
                break
            await asyncio.sleep(LOOK_SECONDS)
            self._take_notes()
        # What was on its way when the last reading began is in the log now.
        return await self._read_all() if not left else logs

    def _unsettled(self, logs: Logs) -> list[str]:
        return [
            f"{len(waiting)} of {topic} {plan.name}"
            for topic, log in logs.items()
            for plan in SUBSCRIPTIONS
            if (waiting := unsettled(self._history, topic, plan.name, log))
        ]

    async def _read_all(self) -> Logs:
        logs: Logs = {}
        async with connect(",".join(self._ground.urls)) as client:
            for topic in self._topics:
                log: dict[int, str] = {}
                try:
                    async with asyncio.timeout(READ_SECONDS_MAX):
                        async for batch in client.reader(topic).batches():
                            for number, payload in enumerate(batch.payloads()):
                                log[batch.offset + number] = value_of(payload)
                    logs[topic] = log
                except (TimeoutError, DanubeError) as error:
                    self._broken(topic, f"cannot be read: {error!r}")
        return logs

    def _take_notes(self) -> None:
        for record in self._following.new():
            self._history.add(record)

    def _broken(self, target: str, detail: str) -> None:
        at = now()
        self._scribe.write(Deed(at, at, "ok", "broken", target, detail))
