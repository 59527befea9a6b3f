"""Clients that run on a machine of their own, for tests of a network that is cut.

    python -m tests.e2e.partition_clients publish URL TOPIC MARK   until stdin is closed
    python -m tests.e2e.partition_clients read URL TOPIC

Prints JSON objects, a line each. It judges nothing; the tests do.
"""

import asyncio
import json
import sys
from typing import Any

from pydanube import connect
from pydanube.errors import DanubeError

SILENT_SECONDS = 2.0
PAUSE_SECONDS = 0.01


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


async def publish(url: str, topic: str, mark: str) -> None:
    stopped = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with connect(url) as client, client.producer(topic, name=f"from-{mark}") as producer:
        number = 0
        while not stopped.done():
            payload = f"{mark}{number}"
            sending = asyncio.ensure_future(producer.send(payload.encode()))
            while not (await asyncio.wait([sending], timeout=SILENT_SECONDS))[0]:
                say(event="silent")
            try:
                sent = sending.result()
            except DanubeError as error:
                say(event="refused", why=str(error))
            else:
                say(event="acknowledged", payload=payload, offset=sent.offset)
            number += 1
            await asyncio.sleep(PAUSE_SECONDS)


async def read(url: str, topic: str) -> None:
    async with connect(url) as client:
        table = await client.reader(topic).to_arrow()
    say(stored=[payload.decode() for payload in table["payload"].to_pylist()])


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    asyncio.run(publish(*arguments) if what == "publish" else read(*arguments))
