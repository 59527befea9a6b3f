"""Our own channel as a receiver, in a process of its own.

python -m benchmarks.own_client receive HOST:PORT JSON
"""

import json
import sys
import time

import uvloop

from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.http2.channel import Http2Channel


async def receive(target: str, topic: str, count: int) -> dict[str, float]:
    """Take a backlog through one stream; acks are not part of the measure."""
    channel = Http2Channel(f"http://{target}")
    request = api.ConsumerRequest(
        topic_name=topic,
        consumer_name="own",
        subscription=f"s{time.time_ns()}",
        start_position="earliest",
    )
    reply = await services.invoke(channel, services.SUBSCRIBE, request)
    receiving = api.ReceiveRequest(consumer_id=reply.consumer_id).SerializeToString()
    started = time.perf_counter()
    async for _ in channel.stream(services.RECEIVE_MESSAGES.path, receiving):
        count -= 1
        if not count:
            break
    seconds = time.perf_counter() - started
    await channel.close()
    return {"seconds": seconds}


async def main(target: str, arguments: dict[str, object]) -> None:
    print(json.dumps(await receive(target, **arguments)))  # type: ignore[arg-type]


if __name__ == "__main__":
    assert sys.argv[1] == "receive"
    uvloop.run(main(sys.argv[2], json.loads(sys.argv[3])))
