"""A stock grpc.aio client as a load, in a process of its own.

    python -m benchmarks.stock_client publish|receive TARGET JSON

Prints one JSON object with what it measured.
"""

import asyncio
import json
import sys
import time

import grpc
import grpc.aio

from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


async def create_producer(channel: grpc.aio.Channel, topic: str, reliable: bool) -> int:
    request = api.ProducerRequest(
        request_id=1, producer_name="stock", topic_name=topic, dispatch_strategy=int(reliable)
    )
    call = channel.unary_unary(services.CREATE_PRODUCER.path)
    return api.ProducerResponse.FromString(await call(request.SerializeToString())).producer_id


async def publish(
    target: str, topic: str, reliable: bool, count: int, window: int, size: int
) -> dict[str, float]:
    async with grpc.aio.insecure_channel(target, options=OPTIONS) as channel:
        producer_id = await create_producer(channel, topic, reliable)
        request = api.StreamMessage(
            request_id=1,
            msg_id=api.MsgID(producer_id=producer_id, topic_name=topic),
            payload=bytes(size),
            publish_time=int(time.time() * 1000),
            producer_name="stock",
        ).SerializeToString()
        send = channel.unary_unary(services.SEND_MESSAGE.path)
        remaining = iter(range(count))

        async def worker() -> None:
            for _ in remaining:
                await send(request)

        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(window)))
        return {"rate": count / (time.perf_counter() - started)}


async def receive(target: str, topic: str, count: int) -> dict[str, float]:
    """Take a backlog through one stream; acks are not part of the measure."""
    async with grpc.aio.insecure_channel(target, options=OPTIONS) as channel:
        request = api.ConsumerRequest(
            topic_name=topic,
            consumer_name="stock",
            subscription=f"s{time.time_ns()}",
            subscription_type=0,
            start_position="earliest",
        )
        subscribe = channel.unary_unary(services.SUBSCRIBE.path)
        reply = api.ConsumerResponse.FromString(await subscribe(request.SerializeToString()))
        receiving = channel.unary_stream(services.RECEIVE_MESSAGES.path)
        received = api.ReceiveRequest(consumer_id=reply.consumer_id).SerializeToString()
        call = receiving(received)
        started = time.perf_counter()
        async for _ in call:
            count -= 1
            if not count:
                break
        seconds = time.perf_counter() - started
        call.cancel()
        return {"seconds": seconds}


async def main(name: str, target: str, arguments: dict[str, object]) -> None:
    run = {"publish": publish, "receive": receive}[name]
    print(json.dumps(await run(target, **arguments)))  # type: ignore[operator]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
