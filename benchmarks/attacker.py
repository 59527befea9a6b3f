"""An attacker of the broker's HTTP/2 limits, in a process of its own.

    python -m benchmarks.attacker NAME PORT JSON

Starts the attack anew at a steady rate until its time is over, however often it is cut off. Prints
one JSON object: how many connections it made, and how many of them the broker ended.
"""

import asyncio
import json
import os
import sys
import time

import uvloop

from pydanube.wire.danube import services
from pydanube.wire.danube.generated import Reflection_pb2 as reflection
from pydanube.wire.danube.reflection import PATHS
from tests.support.http2_attacks import ATTACKS, FLOOD_FRAMES_MAX, Attack, Attacker, Target
from tests.support.http2_peers import HELLO

ADDRESS = "127.0.0.2"
CONNECTIONS_MAX = 512
REFLECTION_BYTES = 3_950
"""What the broker tells about the service of a producer."""
FLOOD_BYTES_MAX = 2**20
HONEST = "honest calls"
"""No attack: as many connections, each with one call that is answered."""


def broker_target() -> Target:
    symbol = services.SEND_MESSAGE.path.split("/")[1]
    request = reflection.ServerReflectionRequest(file_containing_symbol=symbol)
    return Target(
        services.SEND_MESSAGE.path, PATHS[0], request.SerializeToString(), REFLECTION_BYTES
    )


class Campaign:
    """One attack again and again. What it sends is written before it starts."""

    def __init__(self, attack: Attack, port: int) -> None:
        self._attack = attack
        self._port = port
        self._target = broker_target()
        self._opening = attack.opening(self._target)
        self._flood = b"" if attack.pause_seconds else self._whole_flood()
        self.connections = 0
        self.cut_off = 0

    def _whole_flood(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        for number in range(FLOOD_FRAMES_MAX if self._attack.flood is not None else 0):
            assert self._attack.flood is not None
            pieces.append(self._attack.flood(self._target, number))
            size += len(pieces[-1])
            if size > FLOOD_BYTES_MAX:
                break
        return b"".join(pieces)

    async def run(self, seconds: float, rate: float) -> None:
        """Start the attack `rate` times a second, each start on connections of its own."""
        start = time.perf_counter()
        tasks: set[asyncio.Task[None]] = set()
        for number in range(int(seconds * rate)):
            await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
            for _ in range(self._attack.at_once):
                if len(tasks) < CONNECTIONS_MAX:
                    task = asyncio.create_task(self._connection())
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
        await asyncio.sleep(max(0.0, start + seconds - time.perf_counter()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self) -> None:
        attacker = await Attacker.connect(self._port, ADDRESS, reads=self._attack.reads)
        self.connections += 1
        sending: asyncio.Task[None] | None = None
        try:
            attacker.send(self._opening, self._flood)
            if self._attack.pause_seconds:
                sending = asyncio.create_task(attacker.flood(self._attack, self._target))
            await (attacker.ended() if self._attack.reads else attacker.dropped())
            self.cut_off += 1
        finally:
            if sending is not None:
                sending.cancel()
            attacker.close()


class HonestClients(Campaign):
    """As many connections as an attack takes, of clients that ask once and leave."""

    def __init__(self, port: int) -> None:
        attack = Attack(
            limit="none", opening=lambda target: HELLO + target.call(0), reason="no reason"
        )
        super().__init__(attack, port)

    async def _connection(self) -> None:
        attacker = await Attacker.connect(self._port, ADDRESS, reads=True)
        self.connections += 1
        attacker.send(self._opening)
        while (await attacker.next_frame()).stream_id != 1:
            pass
        attacker.close()


async def main(name: str, port: int, seconds: float, rate: float) -> None:
    # It stands for another machine, so it must not take the cores of those it disturbs.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    campaign = HonestClients(port) if name == HONEST else Campaign(ATTACKS[name], port)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await campaign.run(seconds, rate)
    print(json.dumps({"connections": campaign.connections, "cut_off": campaign.cut_off}))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), **json.loads(sys.argv[3])))
