"""Files that are created once and never replaced, in a directory or a bucket: the truth of tables
that are in no catalogue.

Whoever creates the next one has committed; of several who try, one does. That rests on the store
alone, so a store is seen to keep its word before it is relied on.
"""

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
from typing_extensions import override

from pydanube.errors import (
    AccessDenied,
    DanubeError,
    InvalidRequest,
    NotSupported,
    Unavailable,
)
from pydanube.runtime.blocking import (
    create_file,
    is_file,
    names_in,
    read_file_if_there,
    remove_file,
    replace_file,
)
from pydanube.runtime.randomness import Randomness
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

_Result = TypeVar("_Result")

_S3_PROPERTIES = {
    "region": ("s3.region", "client.region"),
    "endpoint": ("s3.endpoint",),
    "access_key": ("s3.access-key-id", "client.access-key-id"),
    "secret_key": ("s3.secret-access-key", "client.secret-access-key"),
    "session_token": ("s3.session-token", "client.session-token"),
    "profile": ("s3.profile-name", "client.profile-name"),
    "role_arn": ("s3.role-arn", "client.role-arn"),
}
_S3_FLAGS = {"anonymous": "s3.anonymous", "virtual_host_style": "s3.force-virtual-addressing"}
"""What pyiceberg calls the settings of a bucket."""

_REMEDIES = {
    StoreProblem.CREDENTIALS: "check s3.access-key-id and s3.secret-access-key of the catalogue, "
    "or those of the environment, and that they may read, write, list and delete in the bucket",
    StoreProblem.PLACE: "create the bucket, or correct warehouse of the catalogue",
    StoreProblem.SETTINGS: "check the properties of the catalogue, such as s3.region",
    StoreProblem.UNREACHABLE: "check s3.endpoint of the catalogue and the network",
    StoreProblem.TIMEOUT: "check s3.endpoint of the catalogue and the network",
}

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_REFUSED = (errno.EACCES, errno.EROFS)


class NumberedFiles(Protocol):
    """Small files of one place, by path below its root. All calls block.

    AccessDenied, InvalidRequest: the place does not let us. Unavailable: what was asked for may
    have happened all the same, now or later.
    """

    @property
    def root(self) -> str:
        """The place as a URL, without a slash at its end."""

    def create(self, path: str, content: bytes) -> bool:
        """Create a file, whole and durably; False: there is one with another content."""

    def read(self, path: str) -> bytes | None:
        """Return a file; None: there is none."""

    def has(self, path: str) -> bool:
        """Tell whether there is a file."""

    def names(self, prefix: str) -> list[str]:
        """Return the names of files and directories whose path begins so, up to the next slash."""

    def replace(self, path: str, content: bytes) -> None:
        """Put a file in place."""

    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""


def open_files(root: str, properties: Mapping[str, str]) -> NumberedFiles:
    """Return the files below a directory, or below a prefix of an S3 bucket.

    Nothing is connected to yet. The properties are pyiceberg's, `s3.…`.
    """
    scheme, separator, rest = root.partition("://")
    if not separator:
        scheme, rest = "file", root
    rest = rest.rstrip("/")
    if scheme == "file" and rest.startswith("/"):
        return DirectoryFiles(rest)
    if scheme in ("s3", "s3a") and rest and not rest.startswith("/"):
        return BucketFiles(f"s3://{rest}", properties)
    raise InvalidRequest(
        f"warehouse {root!r} is no place for Iceberg tables without a catalogue: name a directory "
        "by its whole path, such as /data/lake, or a bucket, such as s3://bucket/lake"
    )


class DirectoryFiles(NumberedFiles):
    """Files of a directory, perhaps one that machines share."""

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    @override
    def root(self) -> str:
        return f"file://{self._path}"

    @override
    def create(self, path: str, content: bytes) -> bool:
        with self._normalised():
            try:
                created = create_file(self._below(path), content)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise _unfit(self.root, f"has no hard links ({error})") from error
            # A server of files may refuse its own work when it is asked a second time.
            return created or read_file_if_there(self._below(path)) == content

    @override
    def read(self, path: str) -> bytes | None:
        with self._normalised():
            return read_file_if_there(self._below(path))

    @override
    def has(self, path: str) -> bool:
        with self._normalised():
            return is_file(self._below(path))

    @override
    def names(self, prefix: str) -> list[str]:
        directory, _, start = prefix.rpartition("/")
        with self._normalised():
            return [name for name in names_in(self._below(directory)) if name.startswith(start)]

    @override
    def replace(self, path: str, content: bytes) -> None:
        with self._normalised():
            replace_file(self._below(path), content)

    @override
    def delete(self, path: str) -> None:
        with self._normalised():
            remove_file(self._below(path))

    def _below(self, path: str) -> str:
        return f"{self._path}/{path}"

    @contextmanager
    def _normalised(self) -> Iterator[None]:
        try:
            yield
        except NotADirectoryError as error:
            raise InvalidRequest(f"{self.root} is no directory of tables: {error}") from error
        except OSError as error:
            kind = AccessDenied if error.errno in _REFUSED else Unavailable
            raise kind(f"{self.root}: {error}; see to the directory or its disk") from error


class BucketFiles(NumberedFiles):
    """Objects below a prefix of an S3 bucket.

    In the process that calls first: no operator survives a fork. Lists are pyarrow's, since OpenDAL
    holds the interpreter lock while it waits for one.
    """

    def __init__(
        self, root: str, properties: Mapping[str, str], patience: Patience | None = None
    ) -> None:
        self._service = store_service(_durable(root, properties))
        self._root = root
        self._properties = dict(properties)
        self._patience = patience or Patience()
        self._operator: Operator | None = None

    @property
    @override
    def root(self) -> str:
        return self._root

    @override
    def create(self, path: str, content: bytes) -> bool:
        from opendal.exceptions import ConditionNotMatch

        def write(operator: "Operator") -> bool:
            try:
                operator.write(path, content, if_not_exists=True)
            except ConditionNotMatch:
                # A call that OpenDAL repeated may have been refused because of itself.
                return bytes(operator.read(path)) == content
            return True

        return self._call(write)

    @override
    def read(self, path: str) -> bytes | None:
        return self._call_for(lambda operator: bytes(operator.read(path)))

    @override
    def has(self, path: str) -> bool:
        return self._call_for(lambda operator: operator.stat(path)) is not None

    @override
    def names(self, prefix: str) -> list[str]:
        from pyarrow import fs as arrow_fs
        from pyiceberg.io.pyarrow import PyArrowFileIO

        directory, _, start = prefix.rpartition("/")
        bucket, _, root = self._root.removeprefix("s3://").partition("/")
        where = "/".join(each for each in (bucket, root, directory) if each)
        selector = arrow_fs.FileSelector(where, allow_not_found=True)
        try:
            found = PyArrowFileIO(self._properties).fs_by_scheme("s3", bucket)
            names = {each.base_name for each in found.get_file_info(selector)}
        except OSError as error:
            raise Unavailable(f"{self._root}: its files cannot be listed: {error}") from error
        return sorted(name for name in names if name and name.startswith(start))

    @override
    def replace(self, path: str, content: bytes) -> None:
        self._call(lambda operator: operator.write(path, content))

    @override
    def delete(self, path: str) -> None:
        self._call(lambda operator: operator.delete(path))

    def _call_for(self, work: "Callable[[Operator], _Result]") -> _Result | None:
        """Return what a call finds; None: it is not there."""
        from opendal.exceptions import NotFound

        def look(operator: "Operator") -> _Result | None:
            try:
                return work(operator)
            except NotFound as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

        return self._call(look)

    def _call(self, work: "Callable[[Operator], _Result]") -> _Result:
        try:
            if self._operator is None:
                self._operator = build_operator(
                    self._service.scheme, self._service.options, self._patience
                )
            return work(self._operator)
        except operator_errors() as error:
            raise self._failed(problem_of(error), error) from error

    def _failed(self, problem: StoreProblem, error: Exception) -> DanubeError:
        remedy = _REMEDIES.get(problem, "try again later")
        text = f"{self._service.description}: {problem.value} ({first_words(error)}); {remedy}"
        if problem is StoreProblem.CREDENTIALS:
            return AccessDenied(text)
        return InvalidRequest(text) if problem.needs_operator else Unavailable(text)


def _durable(root: str, properties: Mapping[str, str]) -> Durable:
    given: dict[str, object] = {"root": root}
    for name, theirs in _S3_PROPERTIES.items():
        given[name] = next((properties[each] for each in theirs if each in properties), None)
    for name, flag in _S3_FLAGS.items():
        given[name] = properties.get(flag, "").lower() == "true"
    return msgspec.convert(given, Durable)


def check_files(files: NumberedFiles, randomness: Randomness) -> None:
    """See that a store does not replace what it is told to keep; NotSupported: it does.

    One file is created twice, and removed again.
    """
    path = f".danube/probe-{randomness.below(2**128):032x}"
    try:
        if not files.create(path, b"first"):
            raise _unfit(files.root, "says that a new name is taken")
        if files.create(path, b"second") or files.read(path) != b"first":
            raise _unfit(files.root, "replaces files that it is told to keep")
    except BaseException:
        with suppress(DanubeError):  # Or it would hide what came first.
            files.delete(path)
        raise
    files.delete(path)


def _unfit(root: str, why: str) -> NotSupported:
    return NotSupported(
        f"{root} {why}, so two exporters could both believe that they have committed. Keep the "
        "tables in a catalogue of type rest, glue, s3tables or sql, or in a store with conditional "
        "writes (S3's If-None-Match) or a file system with hard links. No table was changed"
    )
