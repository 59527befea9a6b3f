"""One connection of a channel: a codec upon a transport."""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from typing_extensions import override

from pydanube.runtime.clock import Clock, Timer
from pydanube.wire.http2.client_codec import ClientCodec
from pydanube.wire.http2.limits import Http2Limits
from pydanube.wire.http2.transports import configure, speaks_http2, write_all

TICK_SECONDS: Final = 5.0


class ClientConnection(asyncio.Protocol):
    """Connected to a server once `ready` is done; `changed` is called when calls may start or end.

    All calls of one turn of the event loop travel in one write.
    """

    def __init__(self, limits: Http2Limits, clock: Clock, changed: Callable[[], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._flush_is_due = False
        self._ticking: Timer | None = None
        self._transport: asyncio.Transport | None = None
        self.codec = ClientCodec(limits, clock.monotonic_ms(), self._flush_soon)
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.ready.add_done_callback(_look_at)
        self._lost = asyncio.Event()

    @property
    def is_usable(self) -> bool:
        """Tell whether new calls may be made here."""
        return self.codec.settings_seen and not self.codec.leaving and not self.codec.finished

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        configure(self._transport)
        if not speaks_http2(self._transport):
            self._fail_to_start("the server does not speak HTTP/2 over TLS")
            self._transport.abort()
            return
        self._tick_later()
        self._flush()

    @override
    def data_received(self, data: bytes) -> None:
        codec = self.codec
        codec.receive(data, self._clock.monotonic_ms())
        if codec.settings_seen and not self.ready.done():
            self.ready.set_result(None)
        self._changed()
        if codec.out or codec.finished or codec.leaving:
            self._flush()

    @override
    def pause_writing(self) -> None:
        self.codec.hold()

    @override
    def resume_writing(self) -> None:
        self.codec.release()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._fail_to_start(str(exc) if exc else "the server closed the connection")
        if self._ticking is not None:
            self._ticking.cancel()
        self.codec.connection_lost()
        self._lost.set()
        self._changed()

    def close(self) -> None:
        """Say good-bye and close; running calls end."""
        self.codec.leave()
        self._flush()

    async def until_lost(self, seconds_max: float) -> None:
        """Wait for the end of a connection that was closed; it is cut off after that long."""
        if self._transport is None:
            return
        timer = self._clock.call_later(seconds_max, self._transport.abort)
        try:
            await self._lost.wait()
        finally:
            timer.cancel()

    def _fail_to_start(self, text: str) -> None:
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(text))

    def _tick_later(self) -> None:
        self._ticking = self._clock.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self.codec.tick(self._clock.monotonic_ms())
        self._flush()
        if not self.codec.finished:
            self._tick_later()

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._transport is None or self._transport.is_closing():
            return  # Nobody is there yet, or any more.
        out = self.codec.take_output()
        if out:
            write_all(self._transport, out)
        codec = self.codec
        if codec.finished or (codec.leaving and not codec.streams):
            self._transport.close()


def _look_at(ready: asyncio.Future[None]) -> None:
    """Keep asyncio from complaining about a failure that nobody waited for."""
    if not ready.cancelled():
        ready.exception()
