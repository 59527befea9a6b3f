"""What the blocking twins in `pydanube.sync` stand on: one event loop on a thread of its own."""

import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pydanube.client.client import Client, Opening
from pydanube.client.errors import ClientClosed
from pydanube.runtime.loop_thread import LoopThread

Inner = TypeVar("Inner")
Twin = TypeVar("Twin")
Result = TypeVar("Result")
Item = TypeVar("Item")


class Blocking(Generic[Inner]):
    """Calls something asynchronous and waits for it. Any number of threads may call at once.

    An interrupted call (Ctrl-C) is cancelled, and what it belongs to can still be used.
    """

    def __init__(self, inner: Inner, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._thread.is_stopped:
            work.close()
            raise ClientClosed("the client is closed; open another one to go on")
        return self._thread.call(work)

    def _begin(self, start: Callable[[], Awaitable[Result]]) -> Future[Result]:
        """Start something on the event loop, and return what to wait for."""
        if self._thread.is_stopped:
            raise ClientClosed("the client is closed; open another one to go on")
        return self._thread.submit(_started(start))

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for a close, unless the client was closed, and all that belongs to it."""
        if self._thread.is_stopped:
            work.close()
        else:
            self._thread.call(work)

    def _open(self, opening: Opening[Any], twin: Callable[[Any, LoopThread], Twin]) -> Twin:
        return twin(self._wait(_result_of(opening)), self._thread)

    def _iterate(self, items: AsyncIterator[Item]) -> Iterator[Item]:
        try:
            while True:
                try:
                    yield self._wait(_next(items))
                except StopAsyncIteration:
                    return
        finally:
            close = getattr(items, "aclose", None)
            if close is not None and not self._thread.is_stopped:
                self._wait(_result_of(close()))


class BlockingContext(Blocking[Inner]):
    """One that is closed at the end of `with`."""

    def close(self) -> None:
        """Close it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class BlockingClient(BlockingContext[Client]):
    """Owns the event loop of a client and of all that is opened over it.

    A client that nobody closed is closed when it is forgotten, or when the program ends.
    """

    def __init__(self, inner: Client, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._shut_down = weakref.finalize(self, _shut_down, inner, thread)

    def _close(self) -> None:
        self._shut_down()


def connect_blocking(opening: Opening[Client], twin: Callable[[Client, LoopThread], Twin]) -> Twin:
    """Open a client on an event loop of its own."""
    thread = LoopThread("danube-client")
    try:
        return twin(thread.call(_result_of(opening)), thread)
    except BaseException:
        thread.stop()
        raise


def _shut_down(client: Client, thread: LoopThread) -> None:
    """Close the client and end its thread, whoever forgot it, and on whichever thread."""
    try:
        if not thread.is_current:
            thread.call(client.close())
    finally:
        thread.stop()


async def _started(start: Callable[[], Awaitable[Result]]) -> Result:
    return await start()


async def _result_of(work: Awaitable[Result]) -> Result:
    return await work


async def _next(items: AsyncIterator[Item]) -> Item:
    return await anext(items)
