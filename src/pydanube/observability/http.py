"""The pages for operators, over the little HTTP/1.1 that their tools need.

    GET /metrics   numbers for Prometheus
    GET /healthz   200 while the process can do its work; 503 means: restart it
    GET /readyz    200 while clients should be sent here; 503 during recovery and shutdown

Both also carry notes: what an operator should see to before it becomes either.

One request per connection. What a stranger can cost is bounded: connections, bytes, time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Protocol

import msgspec

from pydanube.observability.exposition import CONTENT_TYPE

CONNECTIONS_MAX = 32
HEAD_BYTES_MAX = 8 * 1024
REQUEST_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 30.0

Complaint = Callable[[], str | None]
"""Says what is wrong, or None when nothing is."""


class Connection(Protocol):
    """What is needed of a network connection; whoever accepted it closes it."""

    async def read(self, length_max: int) -> bytes:
        """Wait for bytes and return some; empty once the other end has closed."""

    async def write(self, data: bytes) -> None:
        """Send; waits while the other end does not keep up."""


class Answer(msgspec.Struct, frozen=True):
    """A response without its framing."""

    status: HTTPStatus
    content_type: str
    body: bytes


class OperatorPages:
    """Answers requests; pass `serve` to a network's `listen`."""

    def __init__(
        self,
        *,
        metrics: Callable[[], Awaitable[bytes]],
        unhealthy: Complaint,
        unready: Complaint,
        notes: Callable[[], Sequence[str]] = tuple,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._metrics = metrics
        self._unhealthy = unhealthy
        self._unready = unready
        self._notes = notes
        self._connections_max = connections_max
        self._open = 0

    async def serve(self, connection: Connection) -> None:
        """Answer one request."""
        self._open += 1
        try:
            if self._open > self._connections_max:
                answer = _text(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
                await self._send(connection, answer, with_body=True)
            else:
                await self._serve_one(connection)
        except TimeoutError:
            return  # Whoever takes this long is cut off without a word.
        finally:
            self._open -= 1

    async def _serve_one(self, connection: Connection) -> None:
        async with asyncio.timeout(REQUEST_SECONDS_MAX):
            head = await _read_head(connection)
        if not head:
            return
        request = parse_head(head)
        if isinstance(request, Answer):
            await self._send(connection, request, with_body=True)
            return
        method, path = request
        if method in ("GET", "HEAD"):
            answer = await self._answer(path)
        else:
            answer = _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered here")
        await self._send(connection, answer, with_body=method != "HEAD")

    async def _answer(self, path: str) -> Answer:
        match path:
            case "/metrics":
                return Answer(HTTPStatus.OK, CONTENT_TYPE, await self._metrics())
            case "/healthz":
                return _verdict(self._unhealthy(), self._notes())
            case "/readyz":
                return _verdict(self._unready(), self._notes())
            case _:
                return _text(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /readyz here")

    async def _send(self, connection: Connection, answer: Answer, *, with_body: bool) -> None:
        head = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\n"
            "Cache-Control: no-store\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            "Connection: close\r\n\r\n"
        )
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            await connection.write(head.encode() + (answer.body if with_body else b""))


def parse_head(head: bytes) -> tuple[str, str] | Answer:
    """Return method and path of a request, or the answer to one that cannot be understood."""
    if b"\r\n\r\n" not in head:
        return _text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long")
    line, _, _ = head.partition(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3 or not line.isascii() or not parts[2].startswith(b"HTTP/1."):
        return _text(HTTPStatus.BAD_REQUEST, "this is no HTTP/1 request")
    return parts[0].decode(), parts[1].decode().partition("?")[0]


async def _read_head(connection: Connection) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES_MAX:
        piece = await connection.read(HEAD_BYTES_MAX - len(head))
        if not piece:
            return b""
        head += piece
    return head


def _verdict(complaint: str | None, notes: Sequence[str]) -> Answer:
    found: dict[str, object] = {"status": "ok"}
    if complaint is not None:
        found = {"status": "unavailable", "reason": complaint}
    if notes:
        found["notes"] = notes
    status = HTTPStatus.OK if complaint is None else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(status, "application/json", msgspec.json.encode(found) + b"\n")


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode())
