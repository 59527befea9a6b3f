"""Carries out what the schedule says, keeps brokers running as a supervisor does, and heals."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tests.chaos.ground import Ground
from tests.chaos.history import BROKER, Deed, Outcome, Scribe, now
from tests.chaos.operator import NotDone, Operator
from tests.chaos.schedule import BROKERS, Step, TopicPlan
from tests.support.broker_process import operator_page

LOOK_SECONDS = 0.25
STUCK_SECONDS_MAX = 45.0
"""A broker that no fault is on and that is not ready for so long is restarted by hand."""
STARTS_MAX = 8
"""A broker that ends so often within a minute does not start any more."""
READY_SECONDS_MAX = 90.0
JOINED_SECONDS_MAX = 60.0
ACTIVATE_SECONDS = 5.0


class Nemesis:
    """Harms brokers; one fault at a time, on one broker or on several."""

    def __init__(self, ground: Ground, operator: Operator, scribe: Scribe) -> None:
        self._ground = ground
        self._operator = operator
        self._scribe = scribe
        self._down: set[int] = set()
        """Brokers that are to stay down for now."""
        self._harmed: set[int] = set()
        self._given_up: set[int] = set()

    async def run(self, steps: Sequence[Step], began: float) -> None:
        """Do what is to be done to brokers, each step when its time has come."""
        for step in steps:
            await asyncio.sleep(max(0.0, began + step.at - now()))
            await self.carry_out(step)

    async def run_deeds(
        self, steps: Sequence[Step], topics: Sequence[TopicPlan], began: float
    ) -> None:
        """Do what is to be done to topics."""
        for step in steps:
            await asyncio.sleep(max(0.0, began + step.at - now()))
            await self._operator.carry_out(step, topics)

    async def carry_out(self, step: Step) -> None:
        at = now()
        outcome: Outcome = "ok"
        brokers = [number for number in step.brokers if number not in self._given_up]
        self._harmed |= set(brokers)
        try:
            match step.kind:
                case "kill" | "restart":
                    await self._end(brokers, step)
                case "disk loss":
                    if not brokers or not await self._lose_disk(brokers[0], step.seconds):
                        outcome = "failed"
                case _:
                    begin, end = self._means(step)
                    for number in brokers:
                        begin(number)
                    await asyncio.sleep(step.seconds)
                    for number in brokers:
                        end(number)
        finally:
            self._harmed -= set(brokers)
            names = ",".join(map(str, brokers))
            self._scribe.write(Deed(at, now(), outcome, step.kind, f"{BROKER}{names}"))

    def heal(self) -> None:
        """Undo everything that lasts."""
        for number in range(BROKERS):
            self._ground.mend_disk(number)
            self._ground.pause(number, until=True)
            self._ground.reconnect(number)
        self._down.clear()
        self._harmed.clear()

    def _means(self, step: Step) -> tuple[Callable[[int], None], Callable[[int], None]]:
        ground = self._ground
        match step.kind:
            case "pause":
                return ground.pause, partial(ground.pause, until=True)
            case "partition":
                return ground.cut_off, ground.reconnect
            case "EIO" | "ENOSPC" | "slow sync" | "stuck sync" as fault:
                return lambda number: ground.strike_disk(number, fault), ground.mend_disk
            case _:
                raise AssertionError(f"{step.kind} is no fault that lasts")

    async def _end(self, brokers: Sequence[int], step: Step) -> None:
        self._down |= set(brokers)
        await asyncio.gather(*(self._end_one(number, step.kind) for number in brokers))
        await asyncio.sleep(step.seconds)
        self._down -= set(brokers)

    async def _end_one(self, number: int, kind: str) -> None:
        broker = self._ground.brokers[number]
        if broker.process is None:
            return
        if broker.process.poll() is not None:
            broker.process = None
            return
        try:
            await asyncio.to_thread(broker.terminate if kind == "restart" else broker.kill)
        except Exception as error:  # It does not stop when it is asked to.
            self._write("helped", number, f"did not stop when asked to: {error!r}")
            await asyncio.to_thread(broker.kill)

    async def _lose_disk(self, number: int, seconds: float) -> bool:
        """Wait until all copies are there, and take those of one broker; tell whether it was done.

        While some are missing, what is lost could be the last ones.
        """
        await self._activate_drained()  # Else there may be no third broker to copy to.
        if not await self._until(self._everything_is_copied, READY_SECONDS_MAX):
            return False
        node = self._ground.node_id(number)
        await self._end([number], Step(0, "kill", seconds=0))
        self._down.add(number)
        self._ground.lose_disk(number)
        await asyncio.sleep(seconds)
        try:
            if node is not None:
                await self._operator.remove_node(node)
            self._down.discard(number)
            if not await self._until(partial(self._has_a_number, number), JOINED_SECONDS_MAX):
                raise NotDone("the broker with the empty disk has drawn no number")
            new = self._ground.node_id(number)
            assert new is not None, "it has a number"
            await self._operator.join_node(new, self._ground.raft_address(number))
            ready = await self._until(partial(self._is_ready, number), READY_SECONDS_MAX)
            if not ready:
                raise NotDone(f"a broker that joined is not ready after {READY_SECONDS_MAX:g} s")
        except NotDone as error:
            self._write("broken", number, f"after the loss of its disk: {error}")
        return True

    async def _has_a_number(self, number: int) -> bool:
        return self._ground.node_id(number) is not None

    async def _everything_is_copied(self) -> bool:
        for number in range(BROKERS):
            page = await self._page(number, "/metrics")
            if page is None or not _no_copies_missing(page):
                return False
        return True

    # As a supervisor.

    async def keep_running(self) -> None:
        """Start brokers that have ended, and help those that are stuck; for ever."""
        starts: list[deque[float]] = [deque(maxlen=STARTS_MAX) for _ in range(BROKERS)]
        well = [now()] * BROKERS
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for number in range(BROKERS):
                if number in self._down or number in self._given_up:
                    well[number] = now()
                    continue
                self._start_if_down(number, starts[number])
                if number in self._harmed or await self._is_ready(number):
                    well[number] = now()
                elif now() - well[number] > STUCK_SECONDS_MAX:
                    await self._help(number)
                    well[number] = now()

    async def see_to_drained(self) -> None:
        """Activate brokers that no fault is on and that took themselves out; for ever.

        A broker whose disk fails again soon after a recovery waits for that, as documented.
        """
        while True:
            await asyncio.sleep(ACTIVATE_SECONDS)
            if not self._down and not self._harmed:
                await self._activate_drained()

    async def _activate_drained(self) -> None:
        for url in await self._operator.activate_drained():
            at = now()
            self._scribe.write(Deed(at, at, "ok", "activated", url))

    def _start_if_down(self, number: int, starts: deque[float]) -> None:
        broker = self._ground.brokers[number]
        if broker.process is not None:
            code = broker.process.poll()
            if code is None:
                return
            self._write("ended", number, f"with {code}")
            if number in self._harmed:
                starts.clear()  # While its disk is ill it cannot but end again.
            if len(starts) == STARTS_MAX and now() - starts[0] < 60:
                self._write("broken", number, f"does not start: {broker.log_tail(3)}")
                self._given_up.add(number)
                return
        starts.append(now())
        broker.start(wait=False)

    async def _help(self, number: int) -> None:
        broker = self._ground.brokers[number]
        page = await self._page(number, "/readyz")
        why = page or "it does not answer"
        self._write(
            "helped",
            number,
            f"not ready for {STUCK_SECONDS_MAX:g} s without a fault: {why.strip()}",
        )
        if broker.process is not None and broker.process.poll() is None:
            await asyncio.to_thread(broker.kill)

    async def wait_ready(self) -> bool:
        """Wait until every broker answers that it is ready."""
        return await self._until(self._all_ready, READY_SECONDS_MAX)

    async def _all_ready(self) -> bool:
        return all([await self._is_ready(number) for number in range(BROKERS)])

    async def _is_ready(self, number: int) -> bool:
        broker = self._ground.brokers[number]
        try:
            status, _ = await asyncio.to_thread(
                operator_page, broker.metrics_port, "/readyz", broker.host, 2
            )
        except OSError:
            return False
        return status == 200

    async def _page(self, number: int, path: str) -> str | None:
        broker = self._ground.brokers[number]
        try:
            _, text = await asyncio.to_thread(
                operator_page, broker.metrics_port, path, broker.host, 2
            )
        except OSError:
            return None
        return text

    async def _until(self, is_so: Callable[[], Awaitable[bool]], seconds_max: float) -> bool:
        deadline = now() + seconds_max
        while not await is_so():
            if now() > deadline:
                return False
            await asyncio.sleep(LOOK_SECONDS)  # Other processes tell nobody.
        return True

    def _write(self, kind: str, number: int, detail: str) -> None:
        at = now()
        self._scribe.write(Deed(at, at, "ok", kind, f"{BROKER}{number}", detail))


def _no_copies_missing(metrics: str) -> bool:
    """Tell whether every topic has the copies it should have."""
    values = [
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith("danube_mirror_short_topics")
    ]
    return bool(values) and not any(values)
