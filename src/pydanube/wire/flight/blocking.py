"""Arrow Flight for callers that block: one connection to one broker, through pyarrow's client.

Spark's workers are such callers. Connections and threads of the client do not survive a fork, so
one is made by the process that uses it. Errors come as kinds of `pydanube.errors`.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct
from typing_extensions import override

from pydanube.errors import (
    AccessDenied,
    AlreadyExists,
    Conflict,
    Corruption,
    DanubeError,
    InvalidRequest,
    NotFound,
    NotSupported,
    Overloaded,
    Unavailable,
)
from pydanube.wire.flight.descriptors import (
    BatchNumbers,
    BatchPlace,
    Json,
    PieceNotes,
    PlanCommand,
    PublishCommand,
    PutAnswer,
    ShareAction,
    ShareAnswer,
    Ticket,
    TopicNotes,
    decode,
    encode,
)
from pydanube.wire.flight.handing_over import HandedOver

_KEEPALIVE_MS = 20_000
_SCHEMES = {
    "http": "grpc",
    "https": "grpc+tls",
    "grpc": "grpc",
    "grpc+tcp": "grpc",
    "grpc+tls": "grpc+tls",
}

_HERE = re.compile(r"grpc://(127\.[0-9.]+|localhost|\[::1\]):[0-9]+")

_SAID = re.compile(
    r"(?:Flight|gRPC) (?:returned )?(?P<kind>[a-z -]+?)(?: error| call), with message: "
    r"(?P<text>.*?)(?:\. gRPC client debug context:.*|\. Client context:.*)?",
    re.DOTALL,
)
_KINDS: Mapping[str, type[DanubeError]] = MappingProxyType(
    {
        "cancelled": Unavailable,
        "invalid argument": InvalidRequest,
        "timeout": Unavailable,
        "not found": NotFound,
        "already exists": AlreadyExists,
        "unauthorized": AccessDenied,
        "unauthenticated": AccessDenied,
        "resource exhausted": Overloaded,
        "precondition failed": Conflict,
        "aborted": Conflict,
        "out-of-range": Corruption,
        "unimplemented": NotSupported,
        "unavailable": Unavailable,
        "data loss": Corruption,
    }
)


class Credentials(Struct, frozen=True, kw_only=True):
    """What a caller shows, and what it trusts. A token is never sent without TLS."""

    token: str | None = None
    tls_ca: bytes | None = None
    tls_cert: bytes | None = None
    tls_key: bytes | None = None

    @override
    def __repr__(self) -> str:
        return "Credentials(…)"  # Secrets must never reach a log.

    @property
    def need_tls(self) -> bool:
        """Whether they make no sense on a plain connection."""
        return any((self.token, self.tls_ca, self.tls_cert, self.tls_key))


class Plan(Struct, frozen=True, kw_only=True):
    """What GetFlightInfo answered."""

    notes: TopicNotes
    pieces: tuple[PieceNotes, ...]


class BlockingFlight:
    """One connection. Threads may share it; a child of a fork may not."""

    def __init__(self, url: str, credentials: Credentials, timeout_seconds: float) -> None:
        from pyarrow import flight  # noqa: TID251  This room is where Flight stays.

        self.url = url
        self._flight: Any = flight  # pyarrow has no types.
        self._timeout_seconds = timeout_seconds
        self._headers = []
        if credentials.token is not None:
            self._headers = [(b"authorization", b"Bearer " + credentials.token.encode())]
        options = {
            "tls_root_certs": credentials.tls_ca,
            "cert_chain": credentials.tls_cert,
            "private_key": credentials.tls_key,
        }
        location = location_of(url, tls=credentials.need_tls)
        self._shares_memory: bool | None = None if _HERE.fullmatch(location) else False
        """Whether the broker can read memory of this process; None: it was not asked yet."""
        self._spare: list[HandedOver] = []
        with _refusals(url):
            self._client = flight.FlightClient(
                location,
                # A peer that is gone without a word must not hold a read for ever.
                generic_options=[
                    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                    ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
                ],
                **{name: value for name, value in options.items() if value is not None},
            )

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def act(self, name: str, body: Struct, answer: type[Json], wait_ms: int = 0) -> Json:
        """Carry out an action; `wait_ms` is what the broker itself may take to answer."""
        action = self._flight.Action(name, msgspec.json.encode(body))
        with _refusals(self.url):
            (result,) = self._client.do_action(action, self._options(wait_ms / 1000))
        return decode(answer, result.body.to_pybytes(), f"the answer of {name}")

    def plan(self, command: PlanCommand) -> Plan:
        """Return the pieces of a read."""
        descriptor = self._flight.FlightDescriptor.for_command(encode(command))
        with _refusals(self.url):
            info = self._client.get_flight_info(descriptor, self._options())
        return Plan(
            notes=decode(TopicNotes, bytes(info.app_metadata), "the notes of a plan"),
            pieces=tuple(
                decode(PieceNotes, bytes(endpoint.app_metadata), "the notes of a piece")
                for endpoint in info.endpoints
            ),
        )

    def topics(self, prefix: str = "") -> list[TopicNotes]:
        """Return the topics whose names begin so; a partitioned one counts once."""
        with _refusals(self.url):
            infos = list(self._client.list_flights(prefix.encode(), self._options()))
        return [
            decode(TopicNotes, bytes(each.app_metadata), "the notes of a topic") for each in infos
        ]

    def get(self, ticket: Ticket) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read a range: batches in order, each with the offset of its first row."""
        with _refusals(self.url):
            reader = self._client.do_get(
                self._flight.Ticket(encode(ticket)),
                self._flight.FlightCallOptions(headers=self._headers),
            )
        try:
            while True:
                with _refusals(self.url):
                    try:
                        chunk = reader.read_chunk()
                    except StopIteration:
                        break
                place = decode(BatchPlace, chunk.app_metadata.to_pybytes(), "a batch's place")
                yield place.offset, chunk.data
        finally:
            reader.cancel()

    def put(self, command: PublishCommand, schema: pa.Schema) -> "BlockingPut":
        """Open a stream of batches to publish."""
        shared = self._shared_memory()
        if shared is not None:
            command = msgspec.structs.replace(command, memory=shared.name)
        descriptor = self._flight.FlightDescriptor.for_command(encode(command))
        with _refusals(self.url):
            writer, results = self._client.do_put(
                descriptor, schema, self._flight.FlightCallOptions(headers=self._headers)
            )
        return BlockingPut(self.url, writer, results, shared, self._spare)

    def _shared_memory(self) -> HandedOver | None:
        """Return memory for a stream; None where the broker cannot read it."""
        if self._shares_memory is False:
            return None
        if self._spare:
            return self._spare.pop()
        try:
            shared = HandedOver()
        except OSError:
            self._shares_memory = False
            return None
        if self._shares_memory is None:
            self._shares_memory = self._can_read(shared.name)
        return shared if self._shares_memory else None

    def _can_read(self, memory: str) -> bool:
        try:
            return self.act("share", ShareAction(memory=memory), ShareAnswer).readable
        except InvalidRequest:
            return False  # It is of a version that does not know how.

    def _options(self, extra_seconds: float = 0.0) -> Any:  # noqa: ANN401  pyarrow has no types.
        return self._flight.FlightCallOptions(
            timeout=self._timeout_seconds + extra_seconds, headers=self._headers
        )


class BlockingPut:
    """One DoPut. Batches are answered in the order they were written."""

    # The two ends are pyarrow's, which has no types.
    def __init__(
        self,
        url: str,
        writer: Any,  # noqa: ANN401
        results: Any,  # noqa: ANN401
        shared: HandedOver | None,
        spare: list[HandedOver],
    ) -> None:
        self._url = url
        self._writer = writer
        self._results = results
        self._shared = shared
        self._spare = spare
        self._unanswered: deque[bool] = deque()
        """Of each batch on its way, whether it lies in shared memory."""

    def write(self, rows: pa.RecordBatch, numbers: BatchNumbers | None) -> None:
        """Send a batch; whether it was taken is learned from `answer`."""
        place = None if self._shared is None else self._shared.put(rows)
        self._unanswered.append(place is not None)
        with _refusals(self._url):
            if place is not None:
                said = msgspec.structs.replace(numbers or BatchNumbers(), place=place)
                self._writer.write_metadata(encode(said))
            elif numbers is None:
                self._writer.write_batch(rows)
            else:
                self._writer.write_with_metadata(rows, encode(numbers))

    def answer(self) -> PutAnswer:
        """Wait for the next batch's answer; a refusal ends the stream and is raised."""
        with _refusals(self._url):
            found = self._results.read()
            if found is None:
                self._writer.close()  # Raises the reason, if the broker gave one.
        if found is None:
            raise Unavailable(f"{self._url} ended a DoPut without an answer")
        if self._unanswered.popleft() and self._shared is not None:
            self._shared.answered()
        return decode(PutAnswer, found.to_pybytes(), "the broker's answer")

    def close(self) -> None:
        """Say that nothing more comes; every answer has been read."""
        with _refusals(self._url):
            self._writer.close()
        # A stream that ends otherwise takes its memory with it: the broker may still read there.
        if self._shared is not None:
            self._spare.append(self._shared)


def location_of(url: str, *, tls: bool) -> str:
    """Return a broker's URL as Flight writes it."""
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        scheme, rest = "http", scheme
    location = _SCHEMES.get(scheme)
    if location is None or not rest:
        raise InvalidRequest(f"{url!r} is no address of a broker, such as http://127.0.0.1:6650")
    return f"{'grpc+tls' if tls else location}://{rest.rstrip('/')}"


def error_of(url: str, error: Exception) -> DanubeError:
    """Return a failure of pyarrow's client as one of ours, in the broker's own words."""
    text = str(error.args[0]) if error.args else str(error)
    said = _SAID.fullmatch(text)
    if said is None:
        return Unavailable(f"{url}: {text}")
    kind = _KINDS.get(said["kind"], DanubeError)
    words = said["text"]
    if kind is Unavailable:
        words = f"{url}: {words}"
    return kind(words)


@contextmanager
def _refusals(url: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise error_of(url, error) from error
