"""Objects of an object store as files to read, for callers that block.

Every read asks for a range of its own. What goes wrong is told in the words of the options
`store.*`: credentials that are refused are AccessDenied, a bucket that is not there and settings
that make no sense are InvalidRequest, an object that is not there any more is Unavailable, as is a
store that does not answer.
"""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from typing_extensions import Buffer, override

from pydanube.errors import AccessDenied, Corruption, DanubeError, InvalidRequest, Unavailable
from pydanube.storage.config import Durable
from pydanube.storage.errors import StoreProblem
from pydanube.storage.segments.location import store_service
from pydanube.storage.segments.operators import (
    Patience,
    build_operator,
    first_words,
    operator_errors,
    problem_of,
)

if TYPE_CHECKING:
    from opendal import Operator

_SETTINGS, _OPTIONS = "storage.durable", "store"

_Result = TypeVar("_Result")


class StoredObjects:
    """One store, in the process that made this: no operator survives a fork."""

    def __init__(self, store: Durable, patience: Patience | None = None) -> None:
        try:
            self._service = store_service(store)
        except InvalidRequest as error:
            raise InvalidRequest(str(error).replace(_SETTINGS, _OPTIONS)) from None
        self._patience = patience or Patience()
        self._operator: Operator | None = None

    def open(self, key: str) -> "StoredObject":
        """Return an object that is there; its size is known from now on."""
        size = self._call(key, lambda operator: operator.stat(key).content_length)
        return StoredObject(self, key, size)

    def read(self, key: str, position: int, length: int) -> bytes:
        """Return exactly these bytes of an object."""
        found = self._call(
            key, lambda operator: bytes(operator.read(key, offset=position, size=length))
        )
        if len(found) != length:
            raise Corruption(
                f"object {key} in {self._service.description} is damaged: it ends before byte "
                f"{position + length}. Restore it from a copy"
            )
        return found

    def write(self, key: str, data: bytes) -> None:
        """Put an object in place under a name that nobody else has."""
        self._call(key, lambda operator: operator.write(key, data))

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        self._call(key, lambda operator: operator.delete(key))

    def _call(self, key: str, work: "Callable[[Operator], _Result]") -> _Result:
        from opendal.exceptions import NotFound

        try:
            if self._operator is None:
                self._operator = build_operator(
                    self._service.scheme, self._service.options, self._patience
                )
            return work(self._operator)
        except NotFound as error:
            if "NoSuchBucket" in str(error):
                raise self._failed(StoreProblem.PLACE, error) from error
            raise Unavailable(
                f"segment {key} is not in {self._service.description} any more"
            ) from error
        except operator_errors() as error:
            raise self._failed(problem_of(error), error) from error

    def _failed(self, problem: StoreProblem, error: Exception) -> DanubeError:
        remedy = self._service.remedies.get(problem, "").replace(_SETTINGS, _OPTIONS)
        remedy = remedy.replace("read, write, list and delete", "read")
        text = f"{self._service.description}: {problem.value} ({first_words(error)}); {remedy}"
        if problem is StoreProblem.CREDENTIALS:
            return AccessDenied(text)
        return InvalidRequest(text) if problem.needs_operator else Unavailable(text)


class StoredObject(io.RawIOBase):
    """One object as a file that can be read anywhere."""

    def __init__(self, objects: StoredObjects, key: str, size: int) -> None:
        super().__init__()
        self._objects = objects
        self._key = key
        self._size = size
        self._at = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._at

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    @override
    def read(self, size: int | None = -1) -> bytes:
        rest = max(0, self._size - self._at)
        length = rest if size is None or size < 0 else min(size, rest)
        if not length:
            return b""
        found = self._objects.read(self._key, self._at, length)
        self._at += length
        return found

    @override
    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)
