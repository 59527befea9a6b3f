"""The switches of the simulated network: delays, cuts, refusals, broken connections, dead hosts."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pydanube.runtime.network import Connection
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.loop import SimulatedDeadlock, run_simulated
from pydanube.runtime.simulation.network import SimulatedNetwork

Scenario = Callable[[SimulatedNetwork], Awaitable[None]]


def on_a_network(scenario: Scenario, seed: int | str = 1) -> None:
    async def main(randomness: Randomness) -> None:
        network = SimulatedNetwork(randomness)
        for name in ("a", "b", "c"):
            await network.host(name).listen("0.0.0.0", 1, echo)
        await scenario(network)

    run_simulated(main, seed)


async def echo(connection: Connection) -> None:
    while data := await connection.read(1_000):
        await connection.write(data)


async def heard(connection: Connection, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += await connection.read(length)
    return data


def now() -> float:
    return asyncio.get_running_loop().time()


def test_bytes_take_time_and_jitter_never_reorders_them() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        network.slow("a", "b", (0.1, 1.0))
        network.slow("b", "a", (0.1, 1.0))
        connection = await network.host("a").connect("b", 1)
        started = now()
        sent = b"".join(f"{number},".encode() for number in range(200))
        for start in range(0, len(sent), 7):
            await connection.write(sent[start : start + 7])
        assert await heard(connection, len(sent)) == sent
        assert 0.2 < now() - started < 3.0

    for seed in range(5):
        on_a_network(scenario, seed)


def test_bytes_arrive_in_other_pieces_than_they_were_written() -> None:
    lengths = set()

    async def scenario(network: SimulatedNetwork) -> None:
        connection = await network.host("a").connect("b", 1)
        await connection.write(b"0123456789")
        lengths.add(len(await connection.read(100)))

    for seed in range(30):
        on_a_network(scenario, seed)
    assert len(lengths) > 3


def test_a_cut_holds_bytes_back_and_mending_it_lets_them_through() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        connection = await network.host("a").connect("b", 1)
        network.cut_both_ways("a", "b")
        await connection.write(b"hello")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(20):
                await connection.read(5)
        network.mend("a", "b")
        started = now()
        assert await heard(connection, 5) == b"hello"
        assert now() - started < 1

    on_a_network(scenario)


def test_a_one_way_cut_lets_the_other_direction_pass() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        got: list[bytes] = []

        async def shout(connection: Connection) -> None:
            await connection.write(b"news")
            while data := await connection.read(100):
                got.append(data)

        await network.host("b").listen("", 2, shout)
        network.slow("b", "a", (1.0, 1.0))
        connection = await network.host("a").connect("b", 2)
        network.cut("a", "b")
        await connection.write(b"question")
        assert await heard(connection, 4) == b"news"
        await asyncio.sleep(10)
        assert got == []
        network.heal()
        await asyncio.sleep(10)
        assert b"".join(got) == b"question"

    on_a_network(scenario)


def test_a_long_cut_breaks_the_end_that_sends_and_later_the_other() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        ended: list[str] = []

        async def listen_only(connection: Connection) -> None:
            try:
                await connection.read(100)
            except ConnectionError:
                ended.append("reset")
                raise

        await network.host("b").listen("", 2, listen_only)
        connection = await network.host("a").connect("b", 2)
        network.cut_both_ways("a", "b")
        started = now()
        await connection.write(b"lost")
        with pytest.raises(ConnectionError):
            await connection.read(1)
        assert 59 < now() - started < 61
        await asyncio.sleep(1_000)
        assert ended == []
        network.heal()
        await asyncio.sleep(1)
        assert ended == ["reset"]

    on_a_network(scenario)


def test_a_cut_that_lasts_for_ever_leaves_no_timer_behind() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        connection = await network.host("a").connect("b", 1)
        network.cut_both_ways("a", "b")
        await connection.write(b"lost")
        await asyncio.Event().wait()

    with pytest.raises(SimulatedDeadlock):
        on_a_network(scenario)


def test_connecting_over_a_cut_waits_and_then_fails_or_succeeds_when_mended() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        network.cut("b", "a")
        started = now()
        with pytest.raises(ConnectionError, match="no answer from b"):
            await network.host("a").connect("b", 1)
        assert 9 < now() - started < 11
        attempt = asyncio.create_task(network.host("a").connect("b", 1))
        await asyncio.sleep(5)
        network.heal()
        connection = await attempt
        await connection.write(b"x")
        assert await connection.read(1) == b"x"

    on_a_network(scenario)


def test_a_partition_separates_groups_and_leaves_the_inside_alone() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        network.partition(["a", "b"], ["c"])
        await network.host("a").connect("b", 1)
        for source, target in (("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")):
            with pytest.raises(ConnectionError):
                await network.host(source).connect(target, 1)
        network.heal()
        await network.host("c").connect("a", 1)

    on_a_network(scenario)


def test_a_host_that_refuses_is_refused_at_once() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        network.refuse("b")
        started = now()
        with pytest.raises(ConnectionRefusedError):
            await network.host("a").connect("b", 1)
        assert now() - started < 1
        with pytest.raises(ConnectionRefusedError):
            await network.host("a").connect("c", 7)
        network.heal()
        await network.host("a").connect("b", 1)

    on_a_network(scenario)


def test_dropped_connections_break_at_both_ends_and_only_they() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        broken: list[str] = []

        async def watch(connection: Connection) -> None:
            try:
                await connection.read(1)
            except ConnectionError:
                broken.append(connection.peer.split(":")[0])
                raise

        await network.host("b").listen("", 2, watch)
        dropped = await network.host("a").connect("b", 2)
        other = await network.host("c").connect("b", 1)
        network.break_connections("b", "a")
        with pytest.raises(ConnectionError):
            await dropped.read(1)
        with pytest.raises(ConnectionError):
            await dropped.write(b"x")
        await asyncio.sleep(1)
        assert broken == ["a"]
        await other.write(b"x")
        assert await other.read(1) == b"x"
        await network.host("a").connect("b", 1)

    on_a_network(scenario)


def test_a_killed_process_ends_or_resets_its_connections() -> None:
    endings = set()

    async def scenario(network: SimulatedNetwork) -> None:
        connection = await network.host("a").connect("b", 1)
        network.kill("b")
        try:
            endings.add(await connection.read(1))
        except ConnectionError:
            endings.add("reset")
        with pytest.raises(ConnectionRefusedError):
            await network.host("a").connect("b", 1)

    for seed in range(20):
        on_a_network(scenario, seed)
    assert endings == {b"", "reset"}


def test_a_host_without_power_is_silent_until_it_is_started_again() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        old = network.host("b")
        connection = await network.host("a").connect("b", 1)
        network.crash("b")
        await connection.write(b"anybody?")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await connection.read(1)
        with pytest.raises(ConnectionError, match="no answer"):
            await network.host("a").connect("b", 1)
        with pytest.raises(ConnectionError, match="died"):
            await old.connect("a", 1)
        await network.host("b").listen("", 1, echo)
        started = now()
        with pytest.raises(ConnectionResetError):
            await connection.read(1)
        assert now() - started < 1
        fresh = await network.host("a").connect("b", 1)
        await fresh.write(b"x")
        assert await fresh.read(1) == b"x"

    on_a_network(scenario)


def test_tasks_that_serve_on_a_dead_host_are_cancelled() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        events: list[str] = []

        async def serve(connection: Connection) -> None:
            try:
                await asyncio.sleep(1_000)
                events.append("went on after death")
            finally:
                events.append("ended")

        await network.host("b").listen("", 2, serve)
        await network.host("a").connect("b", 2)
        network.crash("b")
        await asyncio.sleep(2_000)
        assert events == ["ended"]

    on_a_network(scenario)


def test_what_a_crashed_host_was_sending_never_arrives() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        got: list[bytes] = []

        async def collect(connection: Connection) -> None:
            while data := await connection.read(100):
                got.append(data)

        await network.host("b").listen("", 2, collect)
        connection = await network.host("a").connect("b", 2)
        network.slow("a", "b", (1.0, 1.0))
        await connection.write(b"ghost")
        await connection.close()
        network.crash("a")
        await asyncio.sleep(5)
        network.host("a")
        await asyncio.sleep(100)
        assert got == []

    on_a_network(scenario)


def test_a_connection_nobody_writes_to_does_not_notice_a_silent_peer() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        connection = await network.host("a").connect("b", 1)
        network.crash("b")
        await connection.read(1)

    with pytest.raises(SimulatedDeadlock):
        on_a_network(scenario)


def test_a_cancelled_connect_leaves_nothing_open_at_the_other_end() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        network.slow("b", "a", (1.0, 1.0))
        attempt = asyncio.create_task(network.host("a").connect("b", 1))
        await asyncio.sleep(0.5)
        assert network.host("b").connections
        attempt.cancel()
        await asyncio.sleep(1)
        assert not network.host("b").connections
        assert not network.host("a").connections

    on_a_network(scenario)


def test_finished_connections_are_forgotten() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        for _ in range(20):
            connection = await network.host("a").connect("b", 1)
            await connection.write(b"x")
            assert await connection.read(1) == b"x"
            await connection.close()
        await asyncio.sleep(1)
        assert not network.host("a").connections
        assert not network.host("b").connections
        assert not network.links.traffic

    on_a_network(scenario)


def test_a_host_reaches_itself_by_the_usual_names() -> None:
    async def scenario(network: SimulatedNetwork) -> None:
        for name in ("localhost", "127.0.0.1", "a"):
            connection = await network.host("a").connect(name, 1)
            await connection.write(b"x")
            assert await connection.read(1) == b"x"

    on_a_network(scenario)
