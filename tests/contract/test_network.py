"""What every `Network` promises, over TCP and over the simulated network."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from pydanube.runtime.network import Connection, Listener, Network
from pydanube.runtime.randomness import SeededRandomness
from pydanube.runtime.simulation.network import SimulatedNetwork
from pydanube.runtime.system_network import SystemNetwork

Serve = Callable[[Connection], Awaitable[None]]


@dataclass
class World:
    server: Network
    client: Network
    server_name: str

    async def listen(self, serve: Serve) -> Listener:
        return await self.server.listen(self.server_name, 0, serve)

    async def connect(self, listener: Listener) -> Connection:
        return await self.client.connect(self.server_name, listener.port)


@pytest.fixture(params=["system", "simulated"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "system":
        system = SystemNetwork()
        yield World(system, system, "127.0.0.1")
        await system.stop()
    else:
        network = SimulatedNetwork(SeededRandomness(1), delay_seconds=(0.0, 0.0001))
        yield World(network.host("server"), network.host("client"), "server")


async def echo(connection: Connection) -> None:
    while data := await connection.read(1_000):
        await connection.write(data)


async def read_exactly(connection: Connection, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = await connection.read(length - len(data))
        assert piece, "the stream ended early"
        data += piece
    return data


async def test_bytes_arrive_whole_and_in_order_both_ways(world: World) -> None:
    listener = await world.listen(echo)
    connection = await world.connect(listener)
    sent = bytes(range(256)) * 2_000

    async def send() -> None:
        for start in range(0, len(sent), 777):
            await connection.write(sent[start : start + 777])

    sending = asyncio.create_task(send())
    assert await read_exactly(connection, len(sent)) == sent
    await sending
    await connection.close()
    await listener.close()


async def test_a_read_returns_no_more_than_asked_for(world: World) -> None:
    listener = await world.listen(echo)
    connection = await world.connect(listener)
    await connection.write(b"0123456789")
    assert len(await connection.read(4)) <= 4
    await connection.close()
    await listener.close()


async def test_the_stream_ends_after_the_last_byte_when_the_server_returns(world: World) -> None:
    async def greet(connection: Connection) -> None:
        await connection.write(b"hello")

    listener = await world.listen(greet)
    connection = await world.connect(listener)
    assert await read_exactly(connection, 5) == b"hello"
    assert await connection.read(10) == b""
    assert await connection.read(10) == b""
    await connection.close()
    await listener.close()


async def test_the_server_sees_the_end_when_the_client_closes(world: World) -> None:
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def collect(connection: Connection) -> None:
        data = b""
        while piece := await connection.read(100):
            data += piece
        received.set_result(data)

    listener = await world.listen(collect)
    connection = await world.connect(listener)
    await connection.write(b"all of it")
    await connection.close()
    async with asyncio.timeout(5):
        assert await received == b"all of it"
    await listener.close()


async def test_nobody_listening_is_a_connection_error(world: World) -> None:
    listener = await world.listen(echo)
    await listener.close()
    with pytest.raises(ConnectionError):
        await world.connect(listener)


async def test_an_unknown_host_is_a_connection_error(world: World) -> None:
    with pytest.raises(ConnectionError):
        await world.client.connect("no-such-host.invalid", 1)


async def test_open_connections_survive_the_listener(world: World) -> None:
    listener = await world.listen(echo)
    connection = await world.connect(listener)
    await connection.write(b"before")
    assert await read_exactly(connection, 6) == b"before"
    await listener.close()
    await connection.write(b"after")
    assert await read_exactly(connection, 5) == b"after"
    await connection.close()


async def test_a_port_in_use_cannot_be_taken_and_is_free_after_closing(world: World) -> None:
    listener = await world.listen(echo)
    with pytest.raises(OSError, match="in use"):
        await world.server.listen(world.server_name, listener.port, echo)
    await listener.close()
    again = await world.server.listen(world.server_name, listener.port, echo)
    assert again.port == listener.port
    await again.close()


async def test_a_writer_waits_for_a_reader_that_does_not_keep_up(world: World) -> None:
    may_read = asyncio.Event()
    total = 32 * 1024 * 1024
    received = 0
    done = asyncio.Event()

    async def dawdle(connection: Connection) -> None:
        nonlocal received
        await may_read.wait()
        while piece := await connection.read(1 << 20):
            received += len(piece)
        done.set()

    listener = await world.listen(dawdle)
    connection = await world.connect(listener)
    written = 0

    async def write() -> None:
        nonlocal written
        piece = bytes(64 * 1024)
        while written < total:
            await connection.write(piece)
            written += len(piece)

    writing = asyncio.create_task(write())
    stuck_at = -1
    while written != stuck_at:
        stuck_at = written
        await asyncio.sleep(0.05)
    assert written < total
    may_read.set()
    await writing
    await connection.close()
    async with asyncio.timeout(10):
        await done.wait()
    assert received == total
    await listener.close()


async def test_writing_to_an_end_that_has_closed_fails_sooner_or_later(world: World) -> None:
    async def leave(connection: Connection) -> None:
        await connection.close()

    listener = await world.listen(leave)
    connection = await world.connect(listener)
    assert await connection.read(1) == b""

    async def insist() -> None:
        for _ in range(1_000):
            await connection.write(b"anybody there?")
            await asyncio.sleep(0.001)

    with pytest.raises(ConnectionError):
        await insist()
    await connection.close()
    await listener.close()


async def test_a_connection_closed_here_cannot_be_used_and_ends_its_reader(world: World) -> None:
    listener = await world.listen(echo)
    connection = await world.connect(listener)
    reading = asyncio.create_task(connection.read(10))
    await asyncio.sleep(0)
    await connection.close()
    assert await reading == b""
    await connection.close()
    with pytest.raises(ConnectionError):
        await connection.read(1)
    with pytest.raises(ConnectionError):
        await connection.write(b"x")
    await listener.close()


async def test_peers_are_named_and_those_served_are_told_apart(world: World) -> None:
    peers: list[str] = []
    all_here = asyncio.Event()

    async def note(connection: Connection) -> None:
        peers.append(connection.peer)
        if len(peers) == 3:
            all_here.set()
        await connection.read(1)

    listener = await world.listen(note)
    connections = [await world.connect(listener) for _ in range(3)]
    assert {connection.peer for connection in connections} == {
        f"{world.server_name}:{listener.port}"
    }
    async with asyncio.timeout(5):
        await all_here.wait()
    assert len(set(peers)) == 3
    for connection in connections:
        await connection.close()
    await listener.close()


async def test_an_error_in_a_server_is_reported_and_ends_only_its_connection(world: World) -> None:
    reports: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reports.append(context["exception"])
    )

    async def fail_if_told(connection: Connection) -> None:
        if await read_exactly(connection, 4) == b"fail":
            raise ValueError("a bug")
        await connection.write(b"fine")

    listener = await world.listen(fail_if_told)
    healthy = await world.connect(listener)
    failing = await world.connect(listener)
    await failing.write(b"fail")
    assert await failing.read(1) == b""
    await healthy.write(b"work")
    assert await read_exactly(healthy, 4) == b"fine"
    assert [str(error) for error in reports] == ["a bug"]
    await failing.close()
    await healthy.close()
    await listener.close()
