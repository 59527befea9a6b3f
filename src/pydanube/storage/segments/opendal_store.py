"""Segments in an object store, through OpenDAL: S3, Google Cloud Storage, Azure Blob, memory."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct
from typing_extensions import override

from pydanube.runtime.answering_process import AnsweringProcess
from pydanube.runtime.threads import WorkerThreads
from pydanube.storage.errors import ObjectMissing, ObjectTooShort, StoreFailed, StoreProblem
from pydanube.storage.segments import lister
from pydanube.storage.segments.lister import Greeting, Listed
from pydanube.storage.segments.object_store import ObjectStore
from pydanube.storage.segments.operators import (
    Patience,
    build_operator,
    first_words,
    operator_errors,
    problem_of,
)

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


class OpenDalStore(ObjectStore):
    """Calls OpenDAL's blocking operator from threads.

    Its asynchronous operator can abort the process at exit, and no operator survives a fork: this
    one is built with the first call. Lists are made in a process of their own, since OpenDAL holds
    the interpreter lock while it waits for one. Objects are written in one request each, never in
    parts, so no half-written object can be seen.
    """

    def __init__(self, service: StoreService, patience: Patience | None = None) -> None:
        self.provider = service.scheme
        self._service = service
        self._patience = patience or Patience()
        self._threads = WorkerThreads("object store", THREADS)
        self._building: asyncio.Future[Operator] | None = None
        greeting = Greeting(service.scheme, service.options, self._patience)
        self._lister = AnsweringProcess(
            lister.__name__, msgspec.json.encode(greeting), self._patience.call_seconds_max
        )

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
            except operator_errors():
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

    def _listed(self, operator: "Operator", directory: str) -> list[str]:
        if self._service.scheme == "memory":  # Which another process would not see.
            paths = (entry.path for entry in operator.list(directory))
            return sorted(path for path in paths if not path.endswith("/"))
        answer = self._lister.ask(msgspec.json.encode(directory))
        listed = msgspec.json.decode(answer, type=Listed)
        if listed.problem is not None:
            raise self._failed(listed.problem, listed.detail)
        return listed.keys

    @override
    async def list(self, directory: str) -> list[str]:
        return await self._call(lambda operator: self._listed(operator, directory))

    @override
    async def directories(self, directory: str) -> tuple[str, ...]:
        def listed(operator: "Operator") -> tuple[str, ...]:
            paths = (entry.path for entry in operator.list(directory or "/"))
            names = (path.removeprefix(directory) for path in paths if path.endswith("/"))
            return tuple(sorted(name.strip("/") for name in names if name.strip("/")))

        return await self._call(listed)

    @override
    async def delete(self, key: str) -> None:
        await self._call(lambda operator: operator.delete(key))

    @override
    async def close(self) -> None:
        await self._threads.run(self._lister.stop)
        self._threads.stop()

    async def _call(self, work: Callable[["Operator"], _Result]) -> _Result:
        try:
            operator = await self._operator()
            # Whoever is cancelled does not wait for the service: names are used once, so what
            # happens later does no harm.
            return await self._threads.submit(lambda: work(operator))
        except operator_errors() as error:
            raise self._failed(problem_of(error), first_words(error)) from error

    def _failed(self, problem: StoreProblem, detail: str) -> StoreFailed:
        remedy = self._service.remedies.get(problem, "")
        return StoreFailed(self.description, problem, detail, remedy)

    async def _operator(self) -> "Operator":
        if self._building is None:
            self._building = self._threads.submit(self._build)
        return await asyncio.shield(self._building)

    def _build(self) -> "Operator":
        return build_operator(self._service.scheme, self._service.options, self._patience)
