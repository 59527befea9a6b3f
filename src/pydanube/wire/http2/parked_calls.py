"""Calls that wait until their caller reads what it has asked for before."""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from typing_extensions import override

from pydanube.runtime.tasks import TaskScope
from pydanube.wire.http2.limits import MIB
from pydanube.wire.http2.server_codec import ServerCodec
from pydanube.wire.http2.server_replies import ServerStream
from pydanube.wire.http2.turns import Busy, Pace, Turns

PARKED_BYTES_MAX: Final = 4 * MIB
"""How much the requests of those that wait may take; how many they are is limited by streams."""

Work = Callable[[], Coroutine[Any, Any, None]]


class ParkedCalls(Busy):
    """Starts the tasks of calls: at once, or one by one while replies cannot leave.

    None waits for ever: a caller may need the answer before it reads another one. But all callers
    in this state share the turns of the slowest pace, until they read. While the transport is full
    no answer reaches anybody, and one call starts each time that it has room again.
    """

    def __init__(self, codec: ServerCodec, scope: TaskScope, turns: Turns) -> None:
        self._codec = codec
        self._scope = scope
        self._turns = turns
        self._waiting: deque[tuple[ServerStream, int, Work]] = deque()
        self._bytes_left = PARKED_BYTES_MAX

    def start(self, stream: ServerStream, request_bytes: int, work: Work) -> None:
        """Run `work` for a call, sooner or later; not at all when its caller goes before."""
        if not self._codec.is_choked or request_bytes > self._bytes_left:
            self._scope.start(work(), stream.head.call.path)
            return
        self._bytes_left -= request_bytes
        self._waiting.append((stream, request_bytes, work))
        self._codec.parked = len(self._waiting)
        if not self._codec.held:
            self._turns.wait(self)

    @property
    @override
    def pace(self) -> Pace:
        return Pace.TRICKLING if self._codec.is_crowded else Pace.STEADY

    @override
    def take_turn(self) -> bool:
        return not self._codec.held and self._start_one()

    def _start_one(self) -> bool:
        """Start the next call whose caller is still there; True when more wait."""
        while self._waiting:
            stream, request_bytes, work = self._waiting.popleft()
            self._bytes_left += request_bytes
            if not stream.local_closed:
                self._scope.start(work(), stream.head.call.path)
                break
            stream.inbox = None
        self._codec.parked = len(self._waiting)
        return self._codec.parked > 0

    def hurry(self) -> None:
        """Go on: replies have been read."""
        if self._start_one():
            self._turns.wait(self)

    def close(self) -> None:
        """Forget all of them: the connection is gone."""
        self._turns.forget(self)
        for stream, _, _ in self._waiting:
            stream.inbox = None
        self._waiting.clear()
        self._codec.parked = 0
