"""What OpenDAL makes of a service that fails, and what we make of that."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pydanube.storage.config import Durable
from pydanube.storage.errors import StoreFailed, StoreProblem
from pydanube.storage.segments.location import store_service
from pydanube.storage.segments.opendal_store import OpenDalStore
from pydanube.storage.segments.operators import Patience

HASTE = Patience(
    answer_seconds=0.3,
    transfer_seconds=0.3,
    retries=2,
    first_delay_seconds=0.01,
    last_delay_seconds=0.02,
)


CODES = {
    200: "",
    403: "AccessDenied",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalError",
    503: "SlowDown",
}


class Answers(ThreadingHTTPServer):
    """Gives each request the next of its answers, and repeats the last; 0 is silence."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.asked = 0
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def store(self) -> OpenDalStore:
        return OpenDalStore(
            store_service(
                Durable(
                    root="s3://bucket",
                    endpoint=f"http://127.0.0.1:{self.server_port}",
                    access_key="key",
                    secret_key="hidden secret",
                )
            ),
            HASTE,
        )


class _Handler(BaseHTTPRequestHandler):
    server: Answers

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"] or 0))
        status = self.server.statuses[min(self.server.asked, len(self.server.statuses) - 1)]
        self.server.asked += 1
        if status == 0:
            self.server.over.wait(10)
            return
        code = CODES[status]
        body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering(*statuses: int) -> Iterator[Answers]:
    server = Answers(*statuses)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


async def test_a_store_that_recovers_is_asked_again() -> None:
    with answering(503, 500, 200) as server:
        store = server.store
        await store.put("a", b"x")
        assert server.asked == 3
        await store.close()


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (503, StoreProblem.THROTTLED),
        (429, StoreProblem.THROTTLED),
        (500, StoreProblem.OTHER),
        (403, StoreProblem.CREDENTIALS),
        (0, StoreProblem.TIMEOUT),
    ],
)
async def test_failures_are_told_by_their_kind(status: int, problem: StoreProblem) -> None:
    with answering(status) as server:
        store = server.store
        with pytest.raises(StoreFailed) as failed:
            await store.put("a", b"x")
        await store.close()
    assert failed.value.problem is problem
    assert failed.value.retryable
    assert server.asked == (1 if status == 403 else 1 + HASTE.retries)
    assert "hidden" not in str(failed.value)
    assert "s3 bucket bucket at http://127.0.0.1" in str(failed.value)


async def test_a_write_that_came_through_late_is_taken_for_a_taken_name() -> None:
    """The first answer is lost, the second says that the name is taken: by that first write."""
    with answering(0, 412) as server:
        store = server.store
        assert not await store.put_if_absent("a", b"x")
        assert server.asked == 2
        await store.close()
