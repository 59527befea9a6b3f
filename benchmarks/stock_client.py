"""A stock grpc.aio client as a load, in a process of its own.

    python -m benchmarks.stock_client publish|receive|put TARGET JSON

Prints one JSON object with what it measured.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio

from pydanube.model.batch import Batch
from pydanube.model.message import Message
from pydanube.wire.calls import whole
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.flight import service
from pydanube.wire.flight.convert import SCHEMA_MESSAGE
from pydanube.wire.flight.framing import (
    COMMAND,
    Descriptor,
    bytes_field,
    flight_data,
    write_descriptor,
)

AHEAD = ("grpc.http2.lookahead_bytes", 64 * 2**20)
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


async def receive(
    target: str, topic: str, count: int, ahead_seconds: float = 0.0
) -> dict[str, float]:
    """Take a backlog through one stream; acks are not part of the measure.

    With `ahead_seconds` the messages get that long to come before the first one is looked at, and
    room to do so: what is measured then is the client alone.
    """
    options = (*OPTIONS, AHEAD) if ahead_seconds else OPTIONS
    async with grpc.aio.insecure_channel(target, options=options) as channel:
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
        await call.wait_for_connection()
        await asyncio.sleep(ahead_seconds)
        started = time.perf_counter()
        async for _ in call:
            count -= 1
            if not count:
                break
        seconds = time.perf_counter() - started
        call.cancel()
        return {"seconds": seconds}


async def put(target: str, topic: str, count: int, size: int, ahead: int) -> dict[str, float]:
    """Publish over one DoPut stream, a message a batch, at most `ahead` of them unanswered."""
    command = {"topic": topic, "producer": "stock", "dispatch": "non_reliable"}
    descriptor = Descriptor(COMMAND, command=json.dumps(command).encode())
    opening = bytes_field(1, write_descriptor(descriptor)) + whole(flight_data(SCHEMA_MESSAGE))
    message = Message(
        payload=bytes(size), publish_time_ms=int(time.time() * 1000), producer_name="stock"
    )
    request = whole(flight_data(Batch.gather([message]).data))
    room = asyncio.Semaphore(ahead)

    async def requests() -> AsyncIterator[bytes]:
        yield opening
        for _ in range(count):
            await room.acquire()
            yield request

    async with grpc.aio.insecure_channel(target, options=OPTIONS) as channel:
        call = channel.stream_stream(service.DO_PUT)(requests())
        started = time.perf_counter()
        answered = 0
        async for _ in call:
            room.release()
            answered += 1
        assert answered == count, f"{answered} of {count} batches were answered"
        return {"rate": count / (time.perf_counter() - started)}


async def main(name: str, target: str, arguments: dict[str, object]) -> None:
    run = {"publish": publish, "receive": receive, "put": put}[name]
    print(json.dumps(await run(target, **arguments)))  # type: ignore[operator]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
