"""A whole broker in the process of whoever uses it, for tests, notebooks and small programs."""

import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from pydanube.broker.config import standalone_config
from pydanube.broker.server import BrokerServer, engine_named
from pydanube.errors import Conflict
from pydanube.runtime.loop_thread import LoopThread

_FREE_PORTS: Mapping[str, object] = {"broker.ports.client": 0, "broker.ports.admin": 0}


class Broker:
    """A broker between `with` and its end, or `async with`; also between `start` and `stop`.

    It is the same broker that `danube broker` runs: real files, real ports on loopback, and an
    acknowledgement means fsynced. It has a thread and an event loop of its own, so that it answers
    while the program that uses it computes or blocks. Without `data_dir` its messages vanish with
    it; with one they are there when a broker starts again over the same directory. `settings` are
    those of the configuration page, such as {"auto_create_topics": False}.
    """

    def __init__(
        self,
        data_dir: str | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        engine: str = "http2",
    ) -> None:
        self._data_dir = data_dir
        self._settings = {**_FREE_PORTS, **(settings or {})}
        self._engine = engine
        self._thread: LoopThread | None = None
        self._server: BrokerServer | None = None
        self._closing = AsyncExitStack()

    @property
    def url(self) -> str:
        """What to give to `connect`."""
        return f"http://127.0.0.1:{self._running.client_port}"

    @property
    def admin_url(self) -> str:
        """Where it is administered."""
        return f"http://127.0.0.1:{self._running.admin_port}"

    def start(self) -> None:
        """Start and recover. DanubeError says why it cannot; then nothing is left over."""
        thread = self._begin()
        try:
            thread.call(self._open())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Finish and sync what was accepted, then close everything; nothing if not running."""
        if self._thread is not None:
            try:
                self._thread.call(self._close())
            finally:
                self._end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        thread = self._begin()
        try:
            await thread.await_call(self._open())
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            try:
                await self._thread.await_call(self._close())
            finally:
                self._end()

    @property
    def _running(self) -> BrokerServer:
        if self._server is None:
            raise Conflict("this broker is not running; use it inside `with Broker() as broker:`")
        return self._server

    def _begin(self) -> LoopThread:
        if self._thread is not None:
            raise Conflict("this broker is running already")
        self._thread = LoopThread("danube-broker")
        return self._thread

    def _end(self) -> None:
        thread, self._thread, self._server = self._thread, None, None
        if thread is not None:
            thread.stop()

    async def _open(self) -> None:
        async with AsyncExitStack() as closing:
            directory = self._data_dir or closing.enter_context(
                tempfile.TemporaryDirectory(prefix="danube-")
            )
            config = standalone_config(directory, overrides=self._settings)
            server = await BrokerServer.start(config, engine=engine_named(self._engine))
            closing.push_async_callback(server.stop)
            self._closing, self._server = closing.pop_all(), server

    async def _close(self) -> None:
        await self._closing.aclose()
