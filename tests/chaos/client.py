"""One client in a process of its own: it publishes, consumes, and obeys orders from its input.

    python -m tests.chaos.client '{"name": …, "urls": …, "topics": …, "history": …}'

An order is a line of JSON, and so is the answer once it is carried out.
"""

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec

from tests.chaos.history import Scribe
from tests.chaos.orders import Charge, Client, Done, Order
from tests.chaos.schedule import STOCK


def _opened(charge: Charge, scribe: Scribe) -> AbstractAsyncContextManager[Client]:
    if charge.name == STOCK:
        from tests.chaos import stock

        return stock.opened(charge, scribe)
    from tests.chaos import ours

    return ours.opened(charge, scribe)


async def main(charge: Charge) -> None:
    scribe = Scribe(Path(charge.history))
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with _opened(charge, scribe) as client:
        orders: set[asyncio.Task[None]] = set()
        while line := await reader.readline():  # Without a conductor the client ends, too.
            order = msgspec.json.decode(line, type=Order)
            task = asyncio.create_task(_carry_out(client, order))
            orders.add(task)
            task.add_done_callback(orders.discard)
            if order.verb == "end":
                await task
                break
    scribe.close()


async def _carry_out(client: Client, order: Order) -> None:
    await client.obey(order)
    sys.stdout.buffer.write(msgspec.json.encode(Done(order.number)) + b"\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Charge)))
