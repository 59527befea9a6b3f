"""How a client ends: what is cut off is told so, and brokers need not wait for it."""

import asyncio
import time
from contextlib import suppress

import pytest

import pydanube
from pydanube import Broker
from pydanube.client.admin import AdminConnection
from pydanube.client.brokers import OpenChannel
from pydanube.client.client import grpcio_channel, http2_channel
from pydanube.client.errors import ClientClosed

TOPIC = "/default/orders"
PROMPT_SECONDS = 1.0
"""Brokers leave clients a second to close, and need a tenth of one themselves."""

channels = pytest.mark.parametrize("open_channel", [http2_channel, grpcio_channel])


class MuteServer:
    """Takes connections and says nothing."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.url = ""
        self._left = asyncio.Event()
        self._held = asyncio.Event()

    async def __aenter__(self) -> "MuteServer":
        self._server = await asyncio.start_server(self._hold, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *details: object) -> None:
        self._left.set()
        await self._held.wait()
        self._server.close()

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected.set()
        await self._left.wait()
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
        self._held.set()


@channels
async def test_a_call_that_the_end_of_its_client_cuts_off_says_so(
    open_channel: OpenChannel,
) -> None:
    async with MuteServer() as server:
        client = await pydanube.connect(server.url, open_channel=open_channel)
        asking = asyncio.create_task(client.schemas.versions("orders"))
        await server.connected.wait()
        await client.close()
        with pytest.raises(ClientClosed, match=f"closed before {server.url} answered") as caught:
            await asking
    assert caught.value.code == pydanube.ClientClosed.code == "client_closed"
    assert not caught.value.retryable


@channels
async def test_an_administrator_s_call_that_is_cut_off_says_so(open_channel: OpenChannel) -> None:
    async with MuteServer() as server:
        admin = AdminConnection(open_channel(server.url), server.url)
        asking = asyncio.create_task(admin.brokers())
        await server.connected.wait()
        await admin.close()
        with pytest.raises(ClientClosed, match="the client was closed"):
            await asking


async def test_a_closed_client_opens_nothing_more(danube_broker: pydanube.Broker) -> None:
    client = await pydanube.connect(danube_broker.url)
    await client.close()
    with pytest.raises(ClientClosed, match="open another client"):
        await client.producer(TOPIC)
    with pytest.raises(ClientClosed):
        await client.schemas.versions("orders")


async def test_a_broker_within_a_running_event_loop_ends_at_once_when_its_clients_have() -> None:
    with Broker() as broker:
        async with (
            pydanube.connect(broker.url) as client,
            client.producer(TOPIC) as producer,
            client.consumer(TOPIC, "audit"),
        ):
            await producer.send(b"one coffee")
        start = time.monotonic()
    assert time.monotonic() - start < PROMPT_SECONDS
