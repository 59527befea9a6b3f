"""Messages that clients refuse by resetting the stream that brings them."""

import asyncio

import grpc
import pytest

from pydanube.subscriptions.long_messages import REFUSED_WITHIN_MS
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.integration.protocol.conftest import StartBroker
from tests.support.raw_client import EXCLUSIVE, SHARED, RawClient, Stream
from tests.support.running_broker import RunningBroker
from tests.support.tcp_proxy import TcpProxy

TOPIC = "/default/orders"
LONG = b"x" * (5 * 1024 * 1024)


@pytest.fixture
async def broker(start_broker: StartBroker) -> RunningBroker:
    return await start_broker(max_message_size=10_485_760)


async def publish(client: RawClient, *payloads: bytes) -> None:
    await client.send_many(TOPIC, await client.create_producer(TOPIC), list(payloads))


def waiting(broker: RunningBroker) -> int:
    return broker.topics.get(TOPIC).subscriptions["s"].waiting_count


def attempt(message: api.StreamMessage) -> str:
    return message.attributes.get("x-delivery-attempt", "1")


async def settled_by_a_stock_client(
    client: RawClient, url: str, consumer_id: int, streams: int
) -> list[bytes]:
    """Read as stock clients do, who open another stream after one that failed."""
    payloads = []
    endings = []
    async with grpc.aio.insecure_channel(url.removeprefix("http://")) as channel:
        for _ in range(streams):
            request = api.ReceiveRequest(consumer_id=consumer_id).SerializeToString()
            call = channel.unary_stream(services.RECEIVE_MESSAGES.path)(request)
            try:
                while True:
                    async with asyncio.timeout(0.5):
                        message = api.StreamMessage.FromString(await call.read())
                    payloads.append(message.payload)
                    await client.ack(message)
            except TimeoutError:
                call.cancel()
            except grpc.aio.AioRpcError as error:
                endings.append(error.code())
    assert set(endings) <= {grpc.StatusCode.RESOURCE_EXHAUSTED}
    return payloads


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_a_refused_message_waits_for_its_retry_while_others_go_ahead(
    broker: RunningBroker, client: RawClient, kind: int
) -> None:
    await publish(client, b"before", LONG, b"behind")
    consumer = await client.subscribe(TOPIC, kind=kind, start_position="earliest")
    url = f"http://127.0.0.1:{broker.server.client_port}"
    assert await settled_by_a_stock_client(client, url, consumer, 2) == [b"before", b"behind"]
    assert waiting(broker) == 1
    broker.clock.advance(1.1)
    stream = client.open(consumer)
    message = await stream.next()
    assert (len(message.payload), attempt(message)) == (len(LONG), "2")


async def test_it_waits_on_when_the_consumer_comes_back_over_another_connection(
    broker: RunningBroker, client: RawClient
) -> None:
    await publish(client, LONG)
    stream = await client.consume(TOPIC, start_position="earliest")
    await stream.next()
    await client.drop(stream)
    other = broker.client()
    stream = await other.consume(TOPIC, start_position="earliest")
    assert await stream.rest() == []
    assert waiting(broker) == 1
    broker.clock.advance(1.1)
    assert attempt(await stream.next()) == "2"


async def test_a_client_that_takes_long_messages_may_end_its_streams_as_ever(
    broker: RunningBroker, client: RawClient
) -> None:
    await publish(client, LONG)
    for number in range(1, 9):
        stream = await client.consume(TOPIC, start_position="earliest")
        assert attempt(await stream.next()) == str(number)
        # It has worked at it for some time: it did take it.
        broker.clock.advance(REFUSED_WITHIN_MS / 1000 + 0.1)
        await client.drop(stream)


async def test_a_lost_connection_says_nothing_against_a_long_message(
    broker: RunningBroker, client: RawClient
) -> None:
    await publish(client, LONG)
    async with TcpProxy(f"http://127.0.0.1:{broker.server.client_port}") as proxy:
        lost = RawClient(proxy.url)
        stream: Stream = await lost.consume(TOPIC, start_position="earliest")
        await stream.next()
        proxy.cut()
        await broker.until(lambda: not broker.topics.get(TOPIC).active_consumers)
        await lost.close()
    assert attempt(await (await client.consume(TOPIC, start_position="earliest")).next()) == "2"


async def test_what_was_acked_is_not_refused_any_more(
    broker: RunningBroker, client: RawClient
) -> None:
    await publish(client, LONG, b"behind")
    stream = await client.consume(TOPIC, start_position="earliest")
    await client.ack(await stream.next())
    await client.drop(stream)
    assert await (await client.consume(TOPIC, start_position="earliest")).payloads(1) == [b"behind"]


async def test_messages_that_stock_clients_take_are_not_refused_by_a_reset(
    broker: RunningBroker, client: RawClient
) -> None:
    await publish(client, b"x" * 4_000_000)
    stream = await client.consume(TOPIC, start_position="earliest")
    await stream.next()
    await client.drop(stream)
    stream = await client.consume(TOPIC)
    assert attempt(await stream.next()) == "2", "it comes at once"
