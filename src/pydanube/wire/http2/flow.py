"""Windows: how much each end may send before the other has made room."""

from collections.abc import Iterator

from pydanube.wire.http2.settings import DEFAULT_WINDOW, WINDOW_MAX


def grown(window: int, increment: int) -> int | None:
    """Return the window after it grew; None when it would pass what RFC 9113 allows."""
    window += increment
    return None if window > WINDOW_MAX else window


class ConnectionWindow:
    """What the peer may still send us on all streams together.

    Bytes are given back as they arrive: what a stream may leave unread is limited by its own
    window. `left` below `low` means that it is time to give back.
    """

    __slots__ = ("left", "low", "size")

    def __init__(self) -> None:
        self.size = DEFAULT_WINDOW
        self.left = DEFAULT_WINDOW
        self.low = 0

    def widen(self, size: int) -> int:
        """Set the size, at least the present one; return what the peer must be told."""
        assert size >= self.size, "a window that was given cannot be taken back"
        self.size = size
        self.low = size // 2
        return self.refill()

    def refill(self) -> int:
        """Give everything back; return what the peer must be told."""
        increment = self.size - self.left
        self.left = self.size
        return increment


class LargeRequests:
    """Bytes that requests too long for their first window share, first come, first served.

    Whoever has been given its bytes can finish, and then makes room for the next: so requests
    that started together never starve each other, and memory stays bounded. One that is larger
    than everything there is gets it when nobody else has any.
    """

    def __init__(self, bytes_max: int) -> None:
        self._left = self._bytes_max = bytes_max
        self._given: dict[int, int] = {}
        self._waiting: dict[int, int] = {}

    def ask(self, stream_id: int, count: int) -> None:
        """Put a stream in line for so many more bytes, or change how many it waits for."""
        if stream_id in self._given:
            # The others wait for this one to end, so it must not wait for them.
            self._waiting = {stream_id: count, **self._waiting}
        else:
            self._waiting[stream_id] = count

    def give(self) -> Iterator[tuple[int, int]]:
        """Yield streams, and how many bytes each may now send."""
        while self._waiting:
            stream_id, count = next(iter(self._waiting.items()))
            if count > self._left and self._given and stream_id not in self._given:
                return
            del self._waiting[stream_id]
            self._given[stream_id] = self._given.get(stream_id, 0) + count
            self._left -= count
            yield stream_id, count

    def end(self, stream_id: int) -> None:
        """Take back what a stream was given, or its place in the line."""
        self._waiting.pop(stream_id, None)
        self._left += self._given.pop(stream_id, 0)
        assert self._left <= self._bytes_max, "more was given back than there is"
