"""A broker whose metadata are put back to an older copy, by seed: it loses nothing it acknowledged.

It serves, or refuses and names what the metadata lack; then recovery brings that in. Whatever was
deleted stays deleted, and no id is given twice.
"""

import asyncio
from collections.abc import Collection
from typing import Any

from pydanube.broker.recovering import RecoveryReport, recover_metadata
from pydanube.runtime.machine import Machine
from pydanube.runtime.randomness import Randomness, SeededRandomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.simulation.network import SimulatedNetwork
from pydanube.storage.config import Segments
from tests.support.broker_machine import (
    ADMIN_PORT,
    CLIENT_PORT,
    DATA,
    HOST,
    BrokerMachine,
    MortalClock,
    simulated_config,
)
from tests.support.plain_engine import PlainChannel
from tests.support.recorded_channel import value_of
from tests.support.wire_calls import create_producer, create_topic, delete_topic, send

SEGMENTS = Segments(seal_bytes=600, seal_seconds=1)
METADATA = f"{DATA}/raft"
READ_SECONDS = 5.0


class OlderMetadata:
    """One seed: topics come and go, the metadata are copied, life goes on, the copy comes back."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        # With short files what was deleted is soon gone; with long ones it stays in the journal.
        self._config = simulated_config(
            file_bytes_max=1_500 if seed % 2 else 50_000, tail_cache_bytes_max=0, segments=SEGMENTS
        )
        self.acknowledged: dict[str, list[str]] = {}
        self.violations: list[str] = []
        self.refusals = 0
        self.notes: list[str] = []

    def run(self) -> list[str]:
        try:
            run_simulated(self._main, f"older metadata {self.seed}", seconds_max=5_000)
        except Exception as error:
            self.violations.append(f"failed: {error!r}")
        return self.violations

    async def _main(self, randomness: Randomness) -> None:
        self._chance = randomness
        self._network = SimulatedNetwork(SeededRandomness(f"{self.seed} network"))
        disk = SimulatedDisk(SeededRandomness(f"{self.seed} disk"))
        self._machine = BrokerMachine(
            self._config,
            disk,
            self._network,
            SeededRandomness(f"{self.seed} machine"),
            self.notes.append,
        )
        self._names = iter(f"/default/topic-{n}" for n in range(1_000))
        with self._machine.listening_to_logs():
            try:
                await self._lives()
            finally:
                await self._machine.close()

    async def _lives(self) -> None:
        await self._live(self._chance.below(4))
        copy, before = await self._copied(), set(self.acknowledged)
        for _ in range(1 + self._chance.below(3)):
            await self._live(1 + self._chance.below(6))
        if self._chance.below(2):
            # Nothing of the time since is there any more: the copy is missed by nobody.
            await self._live(0, deleting=set(self.acknowledged) - before)
        await self._put_back(copy)
        for _ in range(2):
            await self._live(1 + self._chance.below(3), recovers=True)
            await self._audit()

    async def _live(
        self, steps: int, *, recovers: bool = False, deleting: Collection[str] = ()
    ) -> None:
        if not await self._machine.start():
            assert recovers, f"it did not start: {self.notes[-3:]}"
            if "older than the messages" not in self.notes[-2] + self.notes[-1]:
                raise AssertionError(f"refused for another reason: {self.notes[-3:]}")
            self.refusals += 1
            self._machine.refused.clear()
            self._machine.complaints.clear()
            await self._recover()
            assert await self._machine.start(), f"not after recovery: {self.notes[-3:]}"
        client, admin = self._channel(CLIENT_PORT), self._channel(ADMIN_PORT)
        for _ in range(steps):
            await self._step(client, admin)
            await asyncio.sleep(self._chance.below(4))
        for topic in sorted(deleting):
            await delete_topic(admin, topic)
            del self.acknowledged[topic]
        await client.close()
        await admin.close()
        if self._chance.below(2):
            await self._machine.stop()
        else:
            self._machine.kill()

    async def _step(self, client: Any, admin: Any) -> None:
        living = sorted(self.acknowledged)
        match self._chance.below(4):
            case 0 if len(living) > 1:
                gone = living[self._chance.below(len(living))]
                await delete_topic(admin, gone)
                del self.acknowledged[gone]
            case 1 | 2 if living:
                await self._publish(client, living[self._chance.below(len(living))])
            case _:
                name = next(self._names)
                await create_topic(admin, name, "Reliable")
                self.acknowledged[name] = []
                await self._publish(client, name)

    async def _publish(self, client: Any, topic: str, count: int | None = None) -> None:
        producer = await create_producer(client, topic, "p", "Reliable")
        for _ in range(1 + self._chance.below(8) if count is None else count):
            value = f"{topic} {len(self.acknowledged[topic])}"
            await send(client, topic, producer, "p", value, length=90)
            self.acknowledged[topic].append(value)

    def _channel(self, port: int) -> PlainChannel:
        return PlainChannel(self._network.host("client"), HOST, port)

    async def _audit(self) -> None:
        if not await self._machine.start():
            self.violations.append(f"does not start: {self.notes[-2:]}")
            return
        for topic, wanted in self.acknowledged.items():
            found = await self._read(topic)
            if found != wanted:
                self.violations.append(f"lost write: {topic} has {found}, not {wanted}")
        await self._machine.stop()
        self.violations += self._machine.complaints

    async def _read(self, topic: str) -> list[str]:
        assert self._machine.server is not None
        serving = self._machine.server._broker._serving
        assert serving is not None
        served = serving.topics.find(topic)
        if served is None or served.log is None:
            return []
        found: list[str] = []
        at = served.log.first_offset
        while pieces := await served.log.read(at, served.log.durable_end):
            for piece in pieces:
                rows = piece.batch.messages(piece.first_row, piece.end_row)
                found += [value_of(row.payload) for row in rows]
            at = pieces[-1].end
        return found

    async def _create(self, topic: str, messages: int) -> None:
        """Live just long enough to create a topic with so many messages."""
        assert await self._machine.start(), self.notes[-3:]
        client, admin = self._channel(CLIENT_PORT), self._channel(ADMIN_PORT)
        await create_topic(admin, topic, "Reliable")
        self.acknowledged[topic] = []
        await self._publish(client, topic, messages)
        await client.close()
        await admin.close()
        await self._machine.stop()

    async def _recover(self) -> RecoveryReport:
        machine = Machine(
            clock=MortalClock(),
            files=self._machine.disk.mount(),
            network=self._network.host(HOST),
            randomness=SeededRandomness(f"{self.seed} recovery"),
        )
        await recover_metadata(self._config, machine, None, apply=False, names={})
        return await recover_metadata(self._config, machine, None, apply=True, names={})

    async def _copied(self) -> dict[str, bytes]:
        disk = self._machine.disk
        names = await disk.mount().list_names(METADATA)
        return {name: disk.contents(f"{METADATA}/{name}") for name in names}

    async def _put_back(self, copy: dict[str, bytes]) -> None:
        files = self._machine.disk.mount()
        for name in await files.list_names(METADATA):
            await files.remove(f"{METADATA}/{name}")
        for name, data in copy.items():
            file = await files.create(f"{METADATA}/{name}")
            await file.append_and_sync([data])
            await file.close()
        await files.sync_directory(METADATA)
