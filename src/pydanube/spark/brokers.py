"""The brokers behind one `url`: connections of this process, and calls that outlast trouble."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from msgspec import Struct

from pydanube.errors import AccessDenied, DanubeError, InvalidRequest, Unavailable
from pydanube.runtime.blocking import environment, pause, process_id, read_file
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.spark.options import Access
from pydanube.wire.flight.blocking import BlockingFlight, Credentials
from pydanube.wire.flight.descriptors import Json

GIVE_UP_SECONDS = 120.0
FIRST_PAUSE_SECONDS = 0.1
LAST_PAUSE_SECONDS = 5.0

_Result = TypeVar("_Result")


class Patience(Struct, frozen=True, kw_only=True):
    """How long trouble is borne with: pauses double from the first to the last."""

    give_up_seconds: float = GIVE_UP_SECONDS
    first_pause_seconds: float = FIRST_PAUSE_SECONDS
    last_pause_seconds: float = LAST_PAUSE_SECONDS


class Attempts:
    """Paces repeats of something that fails, until it has failed for too long.

    Progress begins the count anew.
    """

    def __init__(self, patience: Patience, clock: Clock, wait: Callable[[float], None]) -> None:
        self._patience = patience
        self._clock = clock
        self._wait = wait
        self.progressed()

    def progressed(self) -> None:
        """Note that it works."""
        self._since = self._clock.monotonic_seconds()
        self._pause = self._patience.first_pause_seconds

    def failed(self, error: DanubeError) -> None:
        """Wait before the next attempt; raise the error if it cannot help or took too long."""
        if not error.retryable:
            raise error
        spent = self._clock.monotonic_seconds() - self._since
        if spent + self._pause > self._patience.give_up_seconds:
            raise Unavailable(f"gave up after {spent:.0f} s: {error}") from error
        self._wait(self._pause)
        self._pause = min(self._pause * 2, self._patience.last_pause_seconds)


class Brokers:
    """Calls any of the brokers, going on with the next when one cannot answer."""

    def __init__(self, access: Access, patience: Patience | None = None) -> None:
        self._access = access
        self._patience = patience or Patience()
        self._clock = SystemClock()
        self._connection: BlockingFlight | None = None
        self._number = 0

    def attempts(self) -> Attempts:
        """Begin to count the failures of something."""
        return Attempts(self._patience, self._clock, pause)

    def call(self, work: Callable[[BlockingFlight], _Result]) -> _Result:
        """Return what `work` returns, repeating it as long as that can help."""
        attempts = self.attempts()
        while True:
            try:
                return self.once(work)
            except DanubeError as error:
                attempts.failed(error)

    def act(self, name: str, body: Struct, answer: type[Json], wait_ms: int = 0) -> Json:
        """Carry out an action, repeating it as long as that can help."""
        return self.call(lambda broker: broker.act(name, body, answer, wait_ms))

    def once(self, work: Callable[[BlockingFlight], _Result]) -> _Result:
        """Do the same without repeating; a broker that failed is left for the next one."""
        try:
            return work(self.connection())
        except AccessDenied:
            if not (self._access.token_file or self._access.token_env):
                raise
            self.leave()  # The token may have been renewed since it was read.
            return work(self.connection())
        except DanubeError as error:
            if error.retryable:
                self.leave()
            raise

    def connection(self) -> BlockingFlight:
        """Return a connection; nothing is sent yet."""
        if self._connection is None:
            url = self._access.urls[self._number % len(self._access.urls)]
            seconds = self._access.request_timeout_ms / 1000
            self._connection = BlockingFlight(url, _credentials(self._access), seconds)
        return self._connection

    def leave(self) -> None:
        """Take the next broker from now on."""
        # Streams may still run on the connection; it ends when the last of them is forgotten.
        self._connection = None
        self._number += 1

    def stream(
        self, open_stream: Callable[[BlockingFlight], Iterator[_Result]]
    ) -> Iterator[_Result]:
        """Iterate over a stream of one broker; a failure leaves that broker."""
        try:
            yield from open_stream(self.connection())
        except DanubeError as error:
            if error.retryable:
                self.leave()
            raise


# Neither connections nor their threads survive a fork, and Spark forks its workers.
_of_this_process: dict[Access, Brokers] = {}
_owner = -1


def brokers_of(access: Access) -> Brokers:
    """Return the brokers of this process; made on first use, kept for the next task."""
    global _owner
    if _owner != process_id():
        _of_this_process.clear()
        _owner = process_id()
    brokers = _of_this_process.get(access)
    if brokers is None:
        brokers = _of_this_process[access] = Brokers(access)
    return brokers


def _credentials(access: Access) -> Credentials:
    token = access.token
    if access.token_file is not None:
        token = _file(access.token_file, "tokenFile").decode().strip()
    elif access.token_env is not None:
        token = environment(access.token_env)
        if not token:
            raise InvalidRequest(
                f"option tokenEnv names {access.token_env}, which is not set where Spark runs"
            )
    return Credentials(
        token=token,
        tls_ca=_file(access.tls_ca, "tlsCa") if access.tls_ca else None,
        tls_cert=_file(access.tls_cert, "tlsCert") if access.tls_cert else None,
        tls_key=_file(access.tls_key, "tlsKey") if access.tls_key else None,
    )


def _file(path: str, option: str) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise InvalidRequest(f"option {option}: {path} cannot be read: {error}") from None
