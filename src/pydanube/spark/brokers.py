"""The brokers behind one `url`: connections of this process, and calls that outlast trouble."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from msgspec import Struct

from pydanube.errors import (
    AccessDenied,
    DanubeError,
    InvalidRequest,
    NotFound,
    NotSupported,
    Unavailable,
)
from pydanube.runtime.blocking import environment, pause, process_id, read_file
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.spark.options import URL_VARIABLE, Access
from pydanube.wire.flight.blocking import BlockingFlight, Credentials
from pydanube.wire.flight.descriptors import Json, LocateAction, LocateAnswer

GIVE_UP_SECONDS = 120.0
FIRST_PAUSE_SECONDS = 0.1
LAST_PAUSE_SECONDS = 5.0
_SERVING_MAX = 10_000
_URLS_MAX = 64

_Result = TypeVar("_Result")


class Patience(Struct, frozen=True, kw_only=True):
    """How long trouble is borne with: pauses double from the first to the last."""

    give_up_seconds: float = GIVE_UP_SECONDS
    first_pause_seconds: float = FIRST_PAUSE_SECONDS
    last_pause_seconds: float = LAST_PAUSE_SECONDS


FIRST_LOOK = Patience(give_up_seconds=10.0)
"""Long enough for topics to find another broker; whoever has mistaken the address waits as long."""
_ANY_TOPIC = "/default/any"


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
    """Calls any of the brokers, going on with the next when one cannot answer.

    Each of them tells about all topics. Rows are read from and written to the broker that serves
    their topic: it is looked up first, and again whenever it fails.
    """

    def __init__(self, access: Access, patience: Patience | None = None) -> None:
        self._access = access
        self._patience = patience or Patience()
        self._clock = SystemClock()
        self._connection: BlockingFlight | None = None
        self._urls = list(access.urls)
        """Those that were given, then those that were heard of."""
        self._number = 0
        self._found = False
        self._serving: dict[str, BlockingFlight] = {}
        """By topic or partition, the broker it was at when it was last looked up."""
        self._others: dict[str, BlockingFlight] = {}
        """By location, brokers that were heard of."""

    def look_for(self, remedy: str) -> None:
        """Raise Unavailable or NotSupported soon if no broker is where they are said to be.

        Once one was there, trouble is borne with for minutes, and nobody looks again.
        """
        if self._found:
            return
        attempts = Attempts(FIRST_LOOK, self._clock, pause)
        try:
            self._call(_say_anything, None, attempts)
        except (Unavailable, NotSupported) as error:
            found = "no broker answers" if error.retryable else "there is no broker with Flight"
            urls = ", ".join(self._access.urls)
            raise type(error)(f"{found} at {urls}: {error}. {remedy}") from error
        except DanubeError:
            pass  # One is there. It says the same again when something is wanted of it.
        self._found = True

    def attempts(self) -> Attempts:
        """Begin to count the failures of something."""
        return Attempts(self._patience, self._clock, pause)

    def call(self, work: Callable[[BlockingFlight], _Result], topic: str | None = None) -> _Result:
        """Return what `work` returns, repeating it as long as that can help; see `once`."""
        return self._call(work, topic, self.attempts())

    def act(self, name: str, body: Struct, answer: type[Json], wait_ms: int = 0) -> Json:
        """Carry out an action, repeating it as long as that can help."""
        return self.call(lambda broker: broker.act(name, body, answer, wait_ms))

    def once(self, work: Callable[[BlockingFlight], _Result], topic: str | None = None) -> _Result:
        """Let any broker do some work, or the one that serves a topic; a failed one is left."""
        try:
            return work(self._chosen(topic))
        except AccessDenied:
            if not (self._access.token_file or self._access.token_env):
                raise
            self.leave(topic)  # The token may have been renewed since it was read.
            return work(self._chosen(topic))
        except DanubeError as error:
            if error.retryable:
                self.leave(topic)
            raise

    def stream(
        self, open_stream: Callable[[BlockingFlight], Iterator[_Result]], topic: str
    ) -> Iterator[_Result]:
        """Iterate over a stream of the broker that serves a topic; a failure leaves that broker."""
        try:
            yield from open_stream(self._chosen(topic))
        except DanubeError as error:
            if error.retryable:
                self.leave(topic)
            raise

    def connection(self) -> BlockingFlight:
        """Return a connection to any broker; nothing is sent yet."""
        if self._connection is None:
            self._connection = self._connect(self._urls[self._number])
        return self._connection

    def leave(self, topic: str | None = None) -> None:
        """Look a topic up again before it is used next, or take the next broker from now on."""
        if topic is None:
            # Streams may still run on the connection; it ends when the last of them is forgotten.
            self._connection = None
            self._number = (self._number + 1) % len(self._urls)
            return
        left = self._serving.pop(topic, None)
        self._others = {
            location: broker for location, broker in self._others.items() if broker is not left
        }
        if left is not None and left is self._connection:
            self.leave()

    def _call(
        self, work: Callable[[BlockingFlight], _Result], topic: str | None, attempts: Attempts
    ) -> _Result:
        while True:
            try:
                return self.once(work, topic)
            except DanubeError as error:
                attempts.failed(error)

    def _chosen(self, topic: str | None) -> BlockingFlight:
        if topic is None:
            return self.connection()
        broker = self._serving.get(topic)
        if broker is None:
            broker = self.once(lambda any_broker: self._find(any_broker, topic))
        return broker

    def _find(self, asked: BlockingFlight, topic: str) -> BlockingFlight:
        """Ask where a topic is; a new one is created by whoever is sent its first batch."""
        try:
            places = asked.act("locate", LocateAction(topics=[topic]), LocateAnswer).topics
        except NotFound:
            return asked
        place = places.get(topic)
        if place is None or place.location is None:
            raise Unavailable(f"{topic} is served by no broker at the moment")
        found = asked if place.here else self._at(place.location)
        if len(self._serving) >= _SERVING_MAX:
            self._serving.clear()
        self._serving[topic] = found
        return found

    def _at(self, location: str) -> BlockingFlight:
        broker = self._others.get(location)
        if broker is None:
            broker = self._others[location] = self._connect(location)
            if location not in self._urls and len(self._urls) < _URLS_MAX:
                self._urls.append(location)
        return broker

    def _connect(self, url: str) -> BlockingFlight:
        seconds = self._access.request_timeout_ms / 1000
        return BlockingFlight(url, credentials_of(self._access), seconds)


def _say_anything(broker: BlockingFlight) -> None:
    broker.act("locate", LocateAction(topics=[_ANY_TOPIC]), LocateAnswer)


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


def found_brokers(access: Access) -> Brokers:
    """Return the same for planning, where somebody waits: an error says soon that none answers."""
    brokers = brokers_of(access)
    brokers.look_for(f"Say where they are with option url, or with {URL_VARIABLE}")
    return brokers


def credentials_of(access: Access) -> Credentials:
    """Return what options name, as files and environment have it now."""
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
