"""Both engines turn connections away that are too many, and take others in when there is room."""

import asyncio
import socket

import grpc
import grpc.aio
import pytest

from pydanube.wire.calls import Call, ConnectionLimit, Engine, HandlerTable
from pydanube.wire.grpcio.engine import GrpcioEngine
from pydanube.wire.http2.engine import Http2Engine
from tests.contract.engine_contract import within_patience

MIB = 1024 * 1024


@pytest.fixture(params=[Http2Engine, GrpcioEngine], ids=["http2", "grpcio"])
def engine(request: pytest.FixtureRequest) -> Engine:
    made: Engine = request.param()
    return made


async def connect(port: int) -> socket.socket:
    connection = socket.socket()
    connection.setblocking(False)
    await within_patience(asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port)))
    return connection


async def is_served(connection: socket.socket) -> bool:
    """Say hello as HTTP/2 does; tell whether the server answers that, or ends the connection."""
    loop = asyncio.get_running_loop()
    heard = b""
    try:
        await loop.sock_sendall(connection, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS)
        while _SETTINGS_ACK not in heard:
            piece = await within_patience(loop.sock_recv(connection, 4096))
            if not piece:
                return False
            heard += piece
    except ConnectionError:
        return False
    return True


_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS_ACK = bytes([0, 0, 0, 4, 1, 0, 0, 0, 0])


async def test_connections_beyond_the_limit_are_turned_away(engine: Engine) -> None:
    async def handler(request: bytes, call: Call) -> bytes:
        return request

    table = HandlerTable()
    table.add_unary("/test/unary", handler)
    limit = ConnectionLimit(connections_max=2, per_address_max=2, backlog=4, held_bytes_max=MIB)
    server = await engine.serve(table, "127.0.0.1", 0, limit)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        assert await channel.unary_unary("/test/unary")(b"in") == b"in"
        silent = await connect(server.port)
        assert await is_served(silent)
        strangers = [await connect(server.port) for _ in range(12)]
        assert not any([await is_served(each) for each in strangers])
        assert await channel.unary_unary("/test/unary")(b"still") == b"still"
        silent.close()
        strangers.append(await connect(server.port))
        while not await is_served(strangers[-1]):  # It takes note of who left in its turn.
            strangers.append(await connect(server.port))
    for each in strangers:
        each.close()
    await server.stop(0)
