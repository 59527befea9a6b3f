"""Segments in an object store, through OpenDAL: S3, Google Cloud Storage, Azure Blob, memory."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from typing_extensions import override

from pydanube.runtime.threads import WorkerThreads
from pydanube.storage.errors import ObjectMissing, ObjectTooShort, StoreFailed, StoreProblem
from pydanube.storage.segments.object_store import ObjectStore

if TYPE_CHECKING:
    from opendal import Operator

_Result = TypeVar("_Result")

THREADS = 16
"""Calls under way at a time; each waits in a thread."""


class StoreService(Struct, frozen=True, kw_only=True):
    """Which service, with which options, and what to tell people about it."""

    scheme: str
    options: Mapping[str, str]
    description: str
    remedies: Mapping[StoreProblem, str]
    """Per problem: which setting mends it."""


class Patience(Struct, frozen=True, kw_only=True):
    """How long one call may take, and how often it is repeated before it has failed."""

    answer_seconds: float = 15.0
    transfer_seconds: float = 60.0
    retries: int = 3
    first_delay_seconds: float = 0.2
    last_delay_seconds: float = 5.0


class OpenDalStore(ObjectStore):
    """Calls OpenDAL's blocking operator from threads.

    Its asynchronous operator can abort the process at exit, and no operator survives a fork: this
    one is built with the first call. Objects are written in one request each, never in parts, so
    no half-written object can be seen.
    """

    def __init__(self, service: StoreService, patience: Patience | None = None) -> None:
        self.provider = service.scheme
        self._service = service
        self._patience = patience or Patience()
        self._threads = WorkerThreads("object store", THREADS)
        self._building: asyncio.Future[Operator] | None = None

    @property
    @override
    def description(self) -> str:
        return self._service.description

    @override
    async def put_if_absent(self, key: str, data: bytes) -> bool:
        from opendal.exceptions import ConditionNotMatch

        def write(operator: "Operator") -> bool:
            try:
                operator.write(key, data, if_not_exists=True)
            except ConditionNotMatch:
                return False
            return True

        return await self._call(write)

    @override
    async def put(self, key: str, data: bytes) -> None:
        await self._call(lambda operator: operator.write(key, data))

    @override
    async def read(self, key: str, position: int, length: int) -> bytes:
        from opendal.exceptions import NotFound

        def read(operator: "Operator") -> bytes:
            try:
                return bytes(operator.read(key, offset=position, size=length))
            except NotFound:
                raise ObjectMissing(self.description, key) from None
            except _errors():
                # Every service has its own word for a range beyond the end.
                if operator.stat(key).content_length >= position + length:
                    raise
            raise ObjectTooShort(self.description, key, position, length)

        return await self._call(read) if length else b""

    @override
    async def size(self, key: str) -> int | None:
        from opendal.exceptions import NotFound

        def size(operator: "Operator") -> int | None:
            try:
                return operator.stat(key).content_length
            except NotFound:
                return None

        return await self._call(size)

    @override
    async def list(self, directory: str) -> list[str]:
        def list_keys(operator: "Operator") -> list[str]:
            return sorted(
                entry.path for entry in operator.list(directory) if not entry.path.endswith("/")
            )

        return await self._call(list_keys)

    @override
    async def delete(self, key: str) -> None:
        await self._call(lambda operator: operator.delete(key))

    @override
    async def close(self) -> None:
        self._threads.stop()

    async def _call(self, work: Callable[["Operator"], _Result]) -> _Result:
        try:
            operator = await self._operator()
            # Whoever is cancelled does not wait for the service: names are used once, so what
            # happens later does no harm.
            return await self._threads.submit(lambda: work(operator))
        except _errors() as error:
            problem = problem_of(error)
            remedy = self._service.remedies.get(problem, "")
            detail = _first_words(error)
            raise StoreFailed(self.description, problem, detail, remedy) from error

    async def _operator(self) -> "Operator":
        if self._building is None:
            self._building = self._threads.submit(self._build)
        return await asyncio.shield(self._building)

    def _build(self) -> "Operator":
        from opendal import Operator
        from opendal.layers import RetryLayer, TimeoutLayer

        patience = self._patience
        timeout = TimeoutLayer(patience.answer_seconds, patience.transfer_seconds)
        retry = RetryLayer(
            max_times=patience.retries,
            factor=2.0,
            jitter=True,
            max_delay=patience.last_delay_seconds,
            min_delay=patience.first_delay_seconds,
        )
        # The retries lie outside: each of them has its own time.
        return Operator(self._service.scheme, **self._service.options).layer(timeout).layer(retry)


def _errors() -> tuple[type[Exception], ...]:
    """Return what OpenDAL raises: kinds without a common base, and OSError now and then."""
    from opendal import exceptions

    kinds = (getattr(exceptions, name) for name in dir(exceptions) if not name.startswith("_"))
    return (*(kind for kind in kinds if issubclass(kind, Exception)), OSError)


def problem_of(error: Exception) -> StoreProblem:
    """Tell what an error of OpenDAL means for an operator."""
    from opendal import exceptions

    text = str(error)
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return StoreProblem.PLACE
    if isinstance(error, exceptions.PermissionDenied):
        return StoreProblem.CREDENTIALS
    if isinstance(error, exceptions.RateLimited):
        return StoreProblem.THROTTLED
    if isinstance(error, exceptions.NotFound):
        # Reads of single objects never come here: what is missing is the place itself.
        return StoreProblem.PLACE
    if isinstance(error, exceptions.ConfigInvalid):
        return StoreProblem.SETTINGS
    # The rest has no kind of its own; its text is that of the HTTP client or of the service.
    lowered = text.lower()
    for words, problem in _BY_TEXT:
        if any(word in lowered for word in words):
            return problem
    return StoreProblem.OTHER


_BY_TEXT = (
    (
        ("signing credential", "signing http request", "status: 401", "status: 403"),
        StoreProblem.CREDENTIALS,
    ),
    (("(connect)", "dns error", "connection refused"), StoreProblem.UNREACHABLE),
    (("slowdown", "toomanyrequests", "serverbusy", "status: 429"), StoreProblem.THROTTLED),
    (("timeout", "timed out"), StoreProblem.TIMEOUT),
    (("error sending request", "connection reset", "send http request"), StoreProblem.UNREACHABLE),
)


def _first_words(error: Exception) -> str:
    """Return what an error says, without addresses of code and without headers of answers."""
    text = str(error)
    first = text.partition("\n")[0]
    source = text.partition("\nSource:\n")[2].partition("\n\n")[0].strip()
    return f"{first}: {source}" if source else first
