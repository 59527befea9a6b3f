"""Stands between a client and an HTTP service, and lets go wrong what it is told to."""

import http.client
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

from typing_extensions import override

Fault = Literal["500", "503", "lost answer", "slow", "cut"]
SLOW_SECONDS = 0.3
_NOT_FORWARDED = {
    "connection",
    "transfer-encoding",
    "content-length",
    "keep-alive",
    "date",
    "server",
}


class FaultyProxy(ThreadingHTTPServer):
    """Each request meets the next of `faults`, if there is one; an `outage` meets all of them."""

    daemon_threads = True

    def __init__(self, url: str) -> None:
        self.upstream = urlsplit(url)
        self.faults: deque[Fault] = deque()
        self.met: list[Fault] = []
        self.outage = False
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{self.upstream.path}"

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that have had enough leave in the middle of an answer."""

    def next_fault(self) -> Fault | None:
        if self.outage:
            return "cut"
        try:
            fault = self.faults.popleft()
        except IndexError:
            return None
        self.met.append(fault)
        return fault


class _Handler(BaseHTTPRequestHandler):
    server: FaultyProxy
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        fault = self.server.next_fault()
        match fault:
            case "cut":
                self.close_connection = True
                return
            case "500" | "503":
                self._answer(int(fault), [], b"")
                return
            case _:
                pass
        status, headers, answer = self._forward(body)
        if fault == "lost answer":
            # It has happened, and the client never hears of it.
            self.server.over.wait(20)
            self.close_connection = True
            return
        if fault == "slow":
            self.server.over.wait(SLOW_SECONDS)
        self._answer(status, headers, answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = self.server.upstream
        assert upstream.hostname is not None
        connection = http.client.HTTPConnection(upstream.hostname, upstream.port, timeout=20)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() != "connection":
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            reply = connection.getresponse()
            return reply.status, reply.getheaders(), reply.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            if name.lower() not in _NOT_FORWARDED:
                self.send_header(name, value)
        self.send_header("content-length", length)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def faulty_proxy(url: str) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(url)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.over.set()
        proxy.shutdown()
        proxy.server_close()
        thread.join()
