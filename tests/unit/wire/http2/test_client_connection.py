"""The client's driver on a transport that does what it is told."""

import asyncio

from pydanube.runtime.clock import SystemClock
from pydanube.wire.http2.channel import CLIENT_LIMITS
from pydanube.wire.http2.client_connection import ClientConnection
from tests.unit.wire.http2.test_server_connection import FakeTransport, all_turns_taken


async def test_a_connection_that_was_lost_is_closed_and_flushed_in_silence():
    transport, complaints = FakeTransport(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    connection = ClientConnection(CLIENT_LIMITS, SystemClock(), lambda: None)
    connection.connection_made(transport)
    connection.codec.out.append(b"asked for in this very turn")
    connection._flush_soon()
    transport.abort()
    connection.connection_lost(ConnectionResetError())
    connection.close()
    await all_turns_taken()
    await connection.until_lost(1)
    assert complaints == []
