"""One client of the server: a codec upon a transport."""

import asyncio
from typing import Final, Protocol, cast

from typing_extensions import override

from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import HandlerTable
from pydanube.wire.http2.errors import ConnectionFault, ErrorCode
from pydanube.wire.http2.frames import goaway_frame
from pydanube.wire.http2.limits import KIB, Http2Limits
from pydanube.wire.http2.long_messages import LongMessages, Receiver
from pydanube.wire.http2.server_calls import ServerCalls
from pydanube.wire.http2.server_heads import Peer
from pydanube.wire.http2.settings import settings_frame
from pydanube.wire.http2.transports import (
    certificate_names,
    configure,
    drop,
    peer_name,
    say_farewell,
    speaks_http2,
    write_all,
)
from pydanube.wire.http2.turns import TURN_SECONDS, Busy, Pace, Turns

FAREWELL_MS: Final = 1_000
FAREWELL_BYTES: Final = 1024 * KIB
"""How long a peer may take to read our last words, and how much it may still say meanwhile."""

_TOO_MANY: Final = settings_frame({}) + goaway_frame(
    0, ErrorCode.ENHANCE_YOUR_CALM, "too many connections"
)

_log = get_logger(__name__)


class Registry(Protocol):
    """Whom a connection tells that it exists."""

    def admit(self, connection: "ServerConnection") -> bool:
        """Take it in, unless there are too many."""

    def dismiss(self, connection: "ServerConnection") -> None:
        """Forget it; harmless for one that was not admitted."""

    def let_leave(self, stranger: "TurnedAway") -> bool:
        """Allow it a moment to read why it must go, unless too many have theirs."""

    def has_left(self, stranger: "TurnedAway") -> None:
        """Forget it; harmless for one that was given no moment."""


class TurnedAway(asyncio.Protocol):
    """Who found too many others here. It is told so, as cheaply as can be, and has to leave.

    Where many come at a time, not even that: they would take the descriptors of others.
    """

    def __init__(self, transport: asyncio.Transport, clock: Clock, registry: Registry) -> None:
        self._transport = transport
        self._registry = registry
        self._heard_bytes = 0
        self._dismissal = clock.call_later(FAREWELL_MS / 1000, self._dismiss)
        if not registry.let_leave(self):
            drop(transport)
            return
        transport.write(_TOO_MANY)
        say_farewell(transport)

    @override
    def data_received(self, data: bytes) -> None:
        self._heard_bytes += len(data)
        if self._heard_bytes > FAREWELL_BYTES:
            self._dismiss()

    def _dismiss(self) -> None:
        drop(self._transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._dismissal.cancel()
        self._registry.has_left(self)


class ServerConnection(Receiver, Busy):
    """One client. The frames of a read are handled together and answered with one write.

    If they take longer than a turn, the rest waits until others have had theirs, and no more is
    read meanwhile.
    """

    def __init__(
        self,
        limits: Http2Limits,
        table: HandlerTable,
        scope: TaskScope,
        clock: Clock,
        registry: Registry,
        turns: Turns,
    ) -> None:
        self._limits = limits
        self._table = table
        self._scope = scope
        self._clock = clock
        self._registry = registry
        self._turns = turns
        self._flush_is_due = False
        self._is_stalled = False
        """No more is read, and nothing done about what was, until the peer reads."""
        self._long_messages: LongMessages | None = None
        self._farewell_ms: int | None = None
        self._farewell_bytes = 0
        self.peer = ""
        self.address = ""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self.peer, self.address = peer_name(self._transport)
        if not self._registry.admit(self):
            self._transport.set_protocol(TurnedAway(self._transport, self._clock, self._registry))
            return
        peer = Peer(self.peer, certificate_names(self._transport))
        self._calls = ServerCalls(
            self._limits,
            self._table,
            peer,
            self._scope,
            self._clock,
            self._turns,
            self._flush_soon,
        )
        self._codec = self._calls.codec
        if self._transport.get_extra_info("ssl_object") is None:
            self._long_messages = LongMessages(self, self._transport)
        configure(self._transport)
        if not speaks_http2(self._transport):
            self._transport.abort()
        self._flush()

    @override
    def data_received(self, data: bytes) -> None:
        if self._farewell_ms is not None:
            self._ignore(data)
            return
        codec = self._codec
        waits = codec.unread
        codec.receive_step(data, self._clock.monotonic_ms())
        if codec.stalls or (codec.unread and not waits):
            self._go_on()
        if codec.out or codec.finished:
            self._flush()
        if self._long_messages is not None and codec.is_within_long_message:
            self._long_messages.begin()

    @property
    @override
    def is_within_long_message(self) -> bool:
        return self._codec.is_within_long_message and self._farewell_ms is None

    @override
    def room(self) -> memoryview | None:
        return None if self._farewell_ms is not None else self._codec.room()

    def _go_on(self) -> None:
        """Use up the present turn, and read no more if that was not enough."""
        if self._is_still_busy():
            self._transport.pause_reading()
            if not self._is_stalled:
                self._turns.wait(self)

    def _is_still_busy(self) -> bool:
        """Go on with what was read for one turn; True when there is more."""
        codec, clock = self._codec, self._clock
        end = clock.monotonic_seconds() + TURN_SECONDS
        while codec.unread and not codec.gives_way and clock.monotonic_seconds() < end:
            codec.next_step(clock.monotonic_ms())
        self._is_stalled = codec.stalls
        return codec.unread or codec.stalls

    @property
    @override
    def pace(self) -> Pace:
        if not self._codec.imposes:
            return Pace.STEADY
        return Pace.TRICKLING if self._codec.is_choked else Pace.PAUSING

    @override
    def take_turn(self) -> bool:
        self._codec.next_step(self._clock.monotonic_ms())
        is_busy = self._is_still_busy()
        if self._transport.is_closing():
            return False
        if not is_busy:
            self._transport.resume_reading()
        if self._codec.out or self._codec.finished:
            self._flush()
        return is_busy and not self._is_stalled

    def _ignore(self, data: bytes) -> None:
        self._farewell_bytes += len(data)
        if self._farewell_bytes > FAREWELL_BYTES:
            drop(self._transport)

    @override
    def pause_writing(self) -> None:
        self._codec.hold()

    @override
    def resume_writing(self) -> None:
        self._codec.release()
        if self._is_stalled:
            self._is_stalled = False
            self._turns.wait(self)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._turns.forget(self)
        self._calls.close()
        self._registry.dismiss(self)

    def tick(self, now_ms: int) -> None:
        """Notice who takes too long; about once a second."""
        if self._farewell_ms is not None and now_ms - self._farewell_ms > FAREWELL_MS:
            drop(self._transport)
            return
        self._codec.tick(now_ms)
        self._flush()

    def leave(self, text: str) -> None:
        """Let running calls end and then close."""
        self._codec.leave(text)
        self._flush()

    def cut(self) -> None:
        """Close, after what has been answered is written."""
        self._codec.connection_lost()
        self._flush()

    @property
    def held_bytes(self) -> int:
        """What is in memory for this peer: unfinished requests, and replies it has not read."""
        waiting = self._transport.get_write_buffer_size()
        return self._codec.buffered_bytes + self._codec.queued_bytes + waiting

    def abort(self) -> None:
        """Close at once."""
        drop(self._transport)

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._farewell_ms is not None or self._transport.is_closing():
            return  # The last word has been said, or nobody is there to hear it.
        self._write_output()
        if self._codec.held:
            self._check_transport()
        if self._codec.finished:
            self._write_output()
            self._farewell_ms = self._clock.monotonic_ms()
            fault = self._codec.fault
            if fault is not None:
                _log.info("a connection was given up", peer=self.peer, reason=str(fault))
            say_farewell(self._transport)

    def _write_output(self) -> None:
        out = self._codec.take_output()
        if out:
            write_all(self._transport, out)

    def _check_transport(self) -> None:
        """Give up on a peer that reads nothing and yet makes us answer."""
        if self._transport.get_write_buffer_size() > self._limits.outgoing_bytes_max:
            fault = ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "replies are not read")
            self._codec.fail(fault)
