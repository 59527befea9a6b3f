"""The interface behind which every schema format stands.

A `SchemaFormat` turns a definition into a `Schema`; a `Schema` is immutable, safe to share between
threads, and everything about it is derived from its definition alone. All of it is synchronous and
without I/O, except that Protobuf text is compiled through the `ProtobufCompiler` it was given,
which may take a second: parse in a worker thread.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from msgspec import Struct
from typing_extensions import override

from pydanube.schemas.limits import SchemaLimits
from pydanube.schemas.spark_types import spark_ddl

# pyarrow ships no types: arrays and types of it are `Any` to mypy.
Payloads = Any
"""A binary `pa.Array` or `pa.ChunkedArray`, or a sequence of bytes. Null rows are invalid."""

ABSENT = "the payload is absent"
"""Why a null row is invalid."""


class Failure(Struct, frozen=True):
    """A payload that is not what the schema describes."""

    row: int
    reason: str


class Incompatibility(Struct, frozen=True):
    """One reason why a reader's schema cannot read what a writer's schema allows.

    `path` leads to the place, by field names from the root, which is the empty path. `rule` is a
    permanent identifier, listed in docs/concepts/schemas.md. The sides say what stands there in
    the writer's and in the reader's schema.
    """

    path: str
    rule: str
    writer_side: str
    reader_side: str

    @override
    def __str__(self) -> str:
        where = self.path or "the schema itself"
        return f"{where}: {self.rule} (writer: {self.writer_side}; reader: {self.reader_side})"


class Change(Struct, frozen=True):
    """One difference between two schemas, for people to read."""

    path: str
    what: str

    @override
    def __str__(self) -> str:
        return f"{self.path or '(root)'}: {self.what}"


class Decoded(Struct, frozen=True):
    """A column of payloads as a column of values; rows that failed are null in it."""

    values: pa.Array
    failures: list[Failure]


class Validator(Protocol):
    """A compiled schema; keep it, compiling costs far more than validating."""

    def failures(self, payloads: Payloads) -> list[Failure]:
        """Return the invalid rows in order of row; an empty list means all are valid."""
        ...


class Schema(ABC):
    """A parsed definition. Equal fingerprints mean equal schemas of one format.

    `definition` is what was registered. `canonical` is the same schema in its normal form, which
    `SchemaFormat.parse` takes too, without a compiler and with the same fingerprint.
    """

    format: ClassVar[str]
    """The format's name on the wire."""

    def __init__(self, definition: bytes, canonical: bytes) -> None:
        self.definition = definition
        self.canonical = canonical
        self.fingerprint = "sha256:" + hashlib.sha256(canonical).hexdigest()

    @abstractmethod
    def validator(self) -> Validator:
        """Return the schema's validator; built at the first call and kept while in use."""

    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """Return the type of decoded values; a struct for records, objects and messages."""

    @abstractmethod
    def decode(self, payloads: Payloads, writer: "Schema | None" = None) -> Decoded:
        """Turn payloads into values of `arrow_type()`.

        Payloads were written by `writer`, a schema of the same format; by this one if None. Fields
        are matched by name: those this schema does not have are left out, those the payload lacks
        are their default, or null.
        """

    def spark_ddl(self) -> str:
        """Return `arrow_type()` as a type in Spark's DDL."""
        return spark_ddl(self.arrow_type())


class ProtobufCompiler(Protocol):
    """Turns Protobuf text into descriptors, out of this process."""

    def compile(self, text: str) -> bytes:
        """Return a serialised FileDescriptorSet: imports first, the compiled file last.

        Only google/protobuf/* may be imported. Raises InvalidSchema with the compiler's words, and
        SchemaCompilerUnavailable when there is no answer.
        """
        ...


class SchemaTools(Struct, frozen=True):
    """What formats are given: their limits, and the way to a Protobuf compiler if there is one."""

    limits: SchemaLimits = SchemaLimits()
    protobuf_compiler: ProtobufCompiler | None = None


class SchemaFormat(ABC):
    """One kind of schema. Stateless; found by entry point, see `pydanube.schemas.catalog`."""

    name: ClassVar[str]
    """The name on the wire: what answers say. Aliases of requests are the catalogue's matter."""

    @abstractmethod
    def parse(self, definition: bytes) -> Schema:
        """Return the schema; raise InvalidSchema or SchemaTooComplex, which say what to mend."""

    @abstractmethod
    def incompatibilities(self, writer: Schema, reader: Schema) -> list[Incompatibility]:
        """Return why `reader` cannot read everything `writer` writes; empty if it can."""

    def evolution_faults(self, old: Schema, new: Schema) -> list[Incompatibility]:
        """Return what `new` may not do as a successor of `old`, whoever reads; writer is `old`."""
        return []

    @abstractmethod
    def difference(self, old: Schema, new: Schema) -> list[Change]:
        """Return what changed from `old` to `new`, in a fixed order."""


SchemaFormatFactory = Callable[[SchemaTools], SchemaFormat]
"""What an entry point of the group `pydanube.schema_formats` names."""


def payload_list(payloads: Payloads) -> Sequence[bytes | None]:
    """Return payloads as bytes objects, whatever they came as."""
    if isinstance(payloads, pa.Array | pa.ChunkedArray):
        rows: list[bytes | None] = payloads.to_pylist()
        return rows
    sequence: Sequence[bytes | None] = payloads
    return sequence
