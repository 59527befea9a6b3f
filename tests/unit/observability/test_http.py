"""What operators' tools get over HTTP, and what strangers do not get."""

import asyncio
import json

import pytest

from pydanube.observability import http
from pydanube.observability.http import OperatorPages


class FakeConnection:
    """Gives the pieces of a request, then the end, or nothing for ever."""

    def __init__(self, *pieces: bytes, then_silent: bool = False) -> None:
        self.written = b""
        self._pieces = list(pieces)
        self._then_silent = then_silent

    async def read(self, length_max: int) -> bytes:
        if self._pieces:
            piece = self._pieces.pop(0)
            if len(piece) > length_max:
                self._pieces.insert(0, piece[length_max:])
            return piece[:length_max]
        if self._then_silent:
            await asyncio.Event().wait()
        return b""

    async def write(self, data: bytes) -> None:
        self.written += data

    @property
    def status(self) -> int:
        return int(self.written.split(b" ")[1])

    @property
    def body(self) -> bytes:
        return self.written.partition(b"\r\n\r\n")[2]


class Broker:
    """What the pages ask the broker."""

    def __init__(self) -> None:
        self.sick: str | None = None
        self.busy: str | None = None
        self.notes: list[str] = []
        self.pages = OperatorPages(
            metrics=self.metrics,
            unhealthy=lambda: self.sick,
            unready=lambda: self.busy,
            notes=lambda: self.notes,
        )

    async def metrics(self) -> bytes:
        return b"danube_broker_topics_owned 3\n"

    async def get(self, path: str, method: str = "GET") -> FakeConnection:
        connection = FakeConnection(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await self.pages.serve(connection)
        return connection


async def test_metrics_are_served_as_prometheus_text() -> None:
    answer = await Broker().get("/metrics?name=up")
    assert answer.status == 200
    assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in answer.written
    assert b"Content-Length: 29\r\n" in answer.written
    assert answer.body == b"danube_broker_topics_owned 3\n"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_healthy_broker_says_ok(path: str) -> None:
    answer = await Broker().get(path)
    assert answer.status == 200
    assert json.loads(answer.body) == {"status": "ok"}


async def test_a_failed_journal_fails_the_health_check_with_its_reason() -> None:
    broker = Broker()
    broker.sick = 'the journal has stopped: "EIO"'
    answer = await broker.get("/healthz")
    assert answer.status == 503
    assert json.loads(answer.body) == {"status": "unavailable", "reason": broker.sick}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_what_an_operator_should_see_to_is_noted_without_a_failure(path: str) -> None:
    broker = Broker()
    broker.notes = ["topic /default/orders cannot be exported: no access"]
    answer = await broker.get(path)
    assert answer.status == 200
    assert json.loads(answer.body) == {"status": "ok", "notes": broker.notes}


async def test_a_draining_broker_is_alive_but_not_ready() -> None:
    broker = Broker()
    broker.busy = "stopping"
    assert (await broker.get("/healthz")).status == 200
    assert (await broker.get("/readyz")).status == 503


async def test_head_gives_the_length_without_the_body() -> None:
    answer = await Broker().get("/metrics", "HEAD")
    assert b"Content-Length: 29\r\n" in answer.written
    assert answer.body == b""


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"PRI * HTTP/2.0\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nCookie: " + b"x" * 9000 + b"\r\n\r\n", 431),
    ],
)
async def test_what_is_not_a_page_is_refused(request_bytes: bytes, status: int) -> None:
    connection = FakeConnection(request_bytes, then_silent=True)
    await Broker().pages.serve(connection)
    assert connection.status == status


async def test_a_request_may_come_in_pieces() -> None:
    connection = FakeConnection(b"GET /heal", b"thz HTTP/1.1\r\n\r", b"\n")
    await Broker().pages.serve(connection)
    assert connection.status == 200


async def test_a_connection_that_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", 0.01)
    connection = FakeConnection(b"GET /metr", then_silent=True)
    await Broker().pages.serve(connection)
    assert connection.written == b""


async def test_a_peer_that_leaves_early_is_no_error() -> None:
    connection = FakeConnection(b"GET /metr")
    await Broker().pages.serve(connection)
    assert connection.written == b""


async def test_connections_are_bounded_and_freed() -> None:
    broker = Broker()
    async with asyncio.TaskGroup() as group:
        silent = [
            group.create_task(broker.pages.serve(FakeConnection(then_silent=True)))
            for _ in range(http.CONNECTIONS_MAX)
        ]
        await asyncio.sleep(0)
        refused = await broker.get("/healthz")
        for task in silent:
            task.cancel()
    assert refused.status == 503
    assert b"too many connections" in refused.body
    assert (await broker.get("/healthz")).status == 200
