"""A network of named hosts in memory that delays, refuses, cuts and breaks as a test decides."""

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable, Collection

from typing_extensions import override

from pydanube.runtime.network import Connection, Listener, Network
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.connection import ConnectionLimits, SimulatedConnection
from pydanube.runtime.simulation.links import Links
from pydanube.runtime.simulation.stream import Notice

_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_FIRST_FREE_PORT = 49152
_CONNECT_AGAIN_SECONDS = 1.0

_Serve = Callable[[Connection], Awaitable[None]]


class SimulatedNetwork:
    """The network between hosts, and the switches of its faults.

    While a way is cut, connecting over it ends in ConnectionError after `connect_seconds`, and an
    open connection holds its bytes back: they arrive after the cut is mended, or the end that
    sends breaks after `stall_seconds`.
    """

    def __init__(
        self,
        randomness: Randomness,
        *,
        delay_seconds: tuple[float, float] = (0.0002, 0.002),
        buffer_bytes: int = 64 * 1024,
        connect_seconds: float = 10.0,
        stall_seconds: float = 60.0,
    ) -> None:
        self.links = Links(randomness, delay_seconds)
        self.limits = ConnectionLimits(buffer_bytes, stall_seconds)
        self.connect_seconds = connect_seconds
        self._hosts: dict[str, SimulatedHost] = {}
        self._refusing: set[str] = set()

    def host(self, name: str) -> "SimulatedHost":
        """Return the network as that host sees it, switching the host on if it is off."""
        present = self._hosts.get(name)
        if present is None or not present.alive:
            present = self._hosts[name] = SimulatedHost(self, name)
            self.links.switch_on(name)
        return present

    def find(self, name: str) -> "SimulatedHost":
        """Return a host that exists."""
        if name not in self._hosts:
            raise ConnectionError(f"no host is called {name}")
        return self._hosts[name]

    def cut(self, source: str, target: str) -> None:
        """Let nothing pass from source to target; the other direction stays open."""
        self.links.cut(source, target)

    def cut_both_ways(self, one: str, other: str) -> None:
        """Let nothing pass between the two."""
        self.links.partition([[one], [other]])

    def partition(self, *groups: Collection[str]) -> None:
        """Let nothing pass between hosts of different groups."""
        self.links.partition(groups)

    def mend(self, one: str, other: str) -> None:
        """Undo the cuts between the two."""
        self.links.mend(one, other)
        self.links.mend(other, one)

    def heal(self) -> None:
        """Undo all cuts and refusals."""
        self._refusing.clear()
        self.links.heal()

    def slow(self, source: str, target: str, delay_seconds: tuple[float, float]) -> None:
        """Let what passes from source to target take between so and so long."""
        self.links.slow(source, target, delay_seconds)

    def refuse(self, name: str) -> None:
        """Let a host refuse new connections until `heal`."""
        self._refusing.add(name)

    def refuses(self, name: str) -> bool:
        """Tell whether a host refuses new connections."""
        return name in self._refusing

    def break_connections(self, one: str, other: str) -> None:
        """Break every open connection between the two, with all that is under way."""
        for connection in list(self.find(one).connections):
            if connection.peer_host == other:
                connection.break_both()

    def kill(self, name: str) -> None:
        """Kill the process on a host: its kernel ends or resets the connections, by seed."""
        self.find(name).die(lambda: Notice.END if self._coin() else Notice.RESET)

    def crash(self, name: str) -> None:
        """Cut a host's power: nobody hears anything from it until `host` switches it on."""
        self.find(name).die(lambda: None)
        self.links.switch_off(name)

    def _coin(self) -> bool:
        return self.links.randomness.below(2) == 1


class SimulatedHost(Network):
    """The network as one host sees it, until the host dies; then every call fails.

    Tasks that serve connections belong to the host and are cancelled when it dies. An error that
    ends one, other than a broken connection, goes to the event loop's exception handler.
    """

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self._network = network
        self._name = name
        self._listeners: dict[int, SimulatedListener] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._next_port = _FIRST_FREE_PORT
        self.connections: dict[SimulatedConnection, None] = {}
        self.alive = True

    @override
    async def listen(self, host: str, port: int, serve: _Serve) -> Listener:
        self._require_alive()
        await asyncio.sleep(0)
        port = port or self._take_port()
        if port in self._listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} of {self._name} is in use")
        listener = SimulatedListener(port, serve, self._listeners)
        self._listeners[port] = listener
        return listener

    @override
    async def connect(self, host: str, port: int) -> Connection:
        self._require_alive()
        target = self._network.find(self._name if host in _OWN_NAMES else host)
        await self._knock(target._name)
        # Whoever has the name by now answers: the host may have been started again meanwhile.
        target = self._network.find(target._name)
        listener = target._listeners.get(port)
        if listener is None or self._network.refuses(target._name):
            await self._network.links.travel(target._name, self._name)
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{host}:{port} refuses")
        near = self._make_end(target._name, f"{target._name}:{port}")
        far = target._make_end(self._name, f"{self._name}:{self._take_port()}")
        near.join(far)
        target._start_serving(far, listener.serve)
        try:
            await self._network.links.travel(target._name, self._name)
        except asyncio.CancelledError:
            near.break_both()
            raise
        return near

    def die(self, choose_last: Callable[[], Notice | None]) -> None:
        """End everything that runs here."""
        self.alive = False
        self._listeners.clear()
        for connection in list(self.connections):
            connection.die(choose_last())
        for task in list(self._tasks):
            task.cancel()

    async def _knock(self, target: str) -> None:
        """Reach the target and be answered, trying again while the way is cut."""
        loop = asyncio.get_running_loop()
        links = self._network.links
        patience_ends = loop.time() + self._network.connect_seconds
        while not await links.travel(self._name, target) or links.blocked(target, self._name):
            self._require_alive()
            if loop.time() >= patience_ends:
                raise ConnectionError(f"no answer from {target}")
            await asyncio.sleep(min(_CONNECT_AGAIN_SECONDS, patience_ends - loop.time()))
        self._require_alive()

    def _make_end(self, peer_host: str, peer: str) -> SimulatedConnection:
        connection = SimulatedConnection(
            self._network.links,
            self._network.limits,
            (self._name, peer_host),
            peer,
            lambda finished: self.connections.pop(finished, None),
        )
        self.connections[connection] = None
        return connection

    def _start_serving(self, connection: SimulatedConnection, serve: _Serve) -> None:
        name = f"{self._name} serves {connection.peer}"
        task = asyncio.get_running_loop().create_task(_serve(connection, serve), name=name)
        self._tasks[task] = None
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        failure = None if task.cancelled() else task.exception()
        if failure is not None and self.alive:
            task.get_loop().call_exception_handler(
                {"message": f"{task.get_name()} failed", "exception": failure}
            )

    def _take_port(self) -> int:
        self._next_port += 1
        return self._next_port - 1

    def _require_alive(self) -> None:
        if not self.alive:
            raise ConnectionError(f"host {self._name} died")


class SimulatedListener(Listener):
    """A port of a simulated host."""

    def __init__(
        self, port: int, serve: _Serve, open_ports: dict[int, "SimulatedListener"]
    ) -> None:
        self._port = port
        self._open_ports = open_ports
        self.serve = serve

    @property
    @override
    def port(self) -> int:
        return self._port

    @override
    async def close(self) -> None:
        if self._open_ports.get(self._port) is self:
            del self._open_ports[self._port]
        await asyncio.sleep(0)


async def _serve(connection: SimulatedConnection, serve: _Serve) -> None:
    try:
        with contextlib.suppress(ConnectionError):
            await serve(connection)
    finally:
        await connection.close()
