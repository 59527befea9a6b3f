"""Clients of other makes against the broker on its own engine."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpclib.client import Channel
from grpclib.const import Cardinality

from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.support.broker_process import BrokerProcess

NO_TOOL = "nghttp2's tools are not installed (apt-get install nghttp2-client)"
needs_nghttp2 = pytest.mark.skipif(shutil.which("h2load") is None, reason=NO_TOOL)

TOPIC = "/default/others"
HEADERS = ["-H", "content-type: application/grpc", "-H", "te: trailers"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("others") / "data", engine="http2") as broker:
        yield broker


async def call(channel: Channel, method: services.Method, request: object) -> object:
    """One unary call of grpclib, without generated stubs."""
    async with channel.request(
        method.path, Cardinality.UNARY_UNARY, method.request, method.response
    ) as stream:
        await stream.send_message(request, end=True)
        return await stream.recv_message()


async def test_grpclib_publishes_subscribes_and_receives(broker: BrokerProcess) -> None:
    async with Channel("127.0.0.1", broker.client_port) as channel:
        producer = await call(
            channel,
            services.CREATE_PRODUCER,
            api.ProducerRequest(producer_name="p", topic_name=TOPIC, dispatch_strategy=1),
        )
        consumer = await call(
            channel,
            services.SUBSCRIBE,
            api.ConsumerRequest(topic_name=TOPIC, consumer_name="c", subscription="s"),
        )
        sent = [f"m{number}".encode() for number in range(20)]
        for payload in sent:
            message = api.StreamMessage(
                msg_id=api.MsgID(producer_id=producer.producer_id, topic_name=TOPIC),
                payload=payload,
                producer_name="p",
            )
            await call(channel, services.SEND_MESSAGE, message)
        method = services.RECEIVE_MESSAGES
        async with channel.request(
            method.path, Cardinality.UNARY_STREAM, method.request, method.response
        ) as stream:
            await stream.send_message(
                api.ReceiveRequest(consumer_id=consumer.consumer_id), end=True
            )
            # The window is ten messages until some are acknowledged.
            received = [(await stream.recv_message()).payload for _ in range(10)]
            await stream.cancel()
        assert received == sent[:10]


def framed(tmp_path: Path, message: api.TopicLookupRequest) -> str:
    data = message.SerializeToString()
    path = tmp_path / "request"
    path.write_bytes(b"\0" + len(data).to_bytes(4, "big") + data)
    return str(path)


@needs_nghttp2
def test_nghttp_gets_a_reply_with_its_trailers(broker: BrokerProcess, tmp_path: Path) -> None:
    body = framed(tmp_path, api.TopicLookupRequest(request_id=1, topic="/default/none"))
    url = f"{broker.url}{services.TOPIC_PARTITIONS.path}"
    done = subprocess.run(
        ["nghttp", "-v", "-n", "-d", body, *HEADERS, url],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert ":status: 200" in done.stdout
    assert "grpc-status: 0" in done.stdout


@needs_nghttp2
def test_h2load_is_answered_on_many_connections_at_once(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    body = framed(tmp_path, api.TopicLookupRequest(request_id=1, topic="/default/none"))
    url = f"{broker.url}{services.TOPIC_PARTITIONS.path}"
    done = subprocess.run(
        ["h2load", "-n", "4000", "-c", "20", "-m", "32", "-d", body, *HEADERS, url],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert re.search(r"4000 succeeded, 0 failed, 0 errored", done.stdout), done.stdout
