"""A stock grpcio client with threads instead of asyncio as a receiver, in a process of its own.

python -m benchmarks.threaded_client receive HOST:PORT JSON
"""

import json
import sys
import time

import grpc

from benchmarks.stock_client import OPTIONS
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api


def receive(target: str, topic: str, count: int) -> dict[str, float]:
    """Take a backlog through one stream; acks are not part of the measure."""
    with grpc.insecure_channel(target, options=OPTIONS) as channel:
        request = api.ConsumerRequest(
            topic_name=topic,
            consumer_name="threaded",
            subscription=f"s{time.time_ns()}",
            start_position="earliest",
        )
        subscribe = channel.unary_unary(services.SUBSCRIBE.path)
        reply = api.ConsumerResponse.FromString(subscribe(request.SerializeToString()))
        receiving = channel.unary_stream(services.RECEIVE_MESSAGES.path)
        call = receiving(api.ReceiveRequest(consumer_id=reply.consumer_id).SerializeToString())
        started = time.perf_counter()
        for _ in call:
            count -= 1
            if not count:
                break
        seconds = time.perf_counter() - started
        call.cancel()
        return {"seconds": seconds}


if __name__ == "__main__":
    assert sys.argv[1] == "receive"
    print(json.dumps(receive(sys.argv[2], **json.loads(sys.argv[3]))))
