"""The formats without a definition: bytes, string and number."""

from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from pydanube.schemas.errors import InvalidSchema
from pydanube.schemas.format import (
    ABSENT,
    Change,
    Decoded,
    Failure,
    Incompatibility,
    Payloads,
    Schema,
    SchemaFormat,
    SchemaTools,
)


class _PrimitiveSchema(Schema):
    """A schema that is its format: its canonical form and fingerprint are the format's name."""

    def __init__(self, definition: bytes) -> None:
        super().__init__(definition, self.format.encode())
        self.fingerprint = self.format

    @override
    def validator(self) -> "_PrimitiveSchema":
        return self

    def failures(self, payloads: Payloads) -> list[Failure]:
        """Return the rows that are absent or not of this kind."""
        column = _binary(payloads)
        return _absent(column) if column.null_count else []

    @override
    def decode(self, payloads: Payloads, writer: Schema | None = None) -> Decoded:
        failures = self.failures(payloads)
        return Decoded(self._values(_without(_binary(payloads), failures)), failures)

    def _values(self, column: pa.Array) -> pa.Array:
        """Turn valid payloads, others being null, into values."""
        return column


class BytesSchema(_PrimitiveSchema):
    """Anything at all."""

    format = "bytes"

    @override
    def arrow_type(self) -> pa.DataType:
        return pa.binary()


class StringSchema(_PrimitiveSchema):
    """Text in UTF-8."""

    format = "string"

    @override
    def arrow_type(self) -> pa.DataType:
        return pa.string()

    @override
    def failures(self, payloads: Payloads) -> list[Failure]:
        column = _binary(payloads)
        try:
            column.cast(pa.string())
        except pa.ArrowInvalid:
            return [
                failure
                for row, payload in enumerate(column.to_pylist())
                if (failure := _text_failure(row, payload)) is not None
            ]
        return super().failures(column)

    @override
    def _values(self, column: pa.Array) -> pa.Array:
        return column.cast(pa.string())


class NumberSchema(_PrimitiveSchema):
    """A number of 4 or 8 bytes. Which kind of number, producers and consumers agree upon."""

    format = "number"

    @override
    def arrow_type(self) -> pa.DataType:
        return pa.binary()

    @override
    def failures(self, payloads: Payloads) -> list[Failure]:
        column = _binary(payloads)
        lengths = pc.binary_length(column)
        right = pc.or_(pc.equal(lengths, 4), pc.equal(lengths, 8))
        if pc.all(right, skip_nulls=False).as_py() is not False and not column.null_count:
            return []
        return [
            Failure(row, ABSENT if length is None else f"{length} bytes are not 4 or 8")
            for row, length in enumerate(lengths.to_pylist())
            if length not in (4, 8)
        ]


class PrimitiveFormat(SchemaFormat):
    """A format whose definition is empty, or its own name."""

    schema: ClassVar[type[_PrimitiveSchema]]

    def __init__(self, tools: SchemaTools) -> None:
        self._limits = tools.limits

    @override
    def parse(self, definition: bytes) -> Schema:
        if len(definition) > self._limits.name_chars_max:
            raise InvalidSchema(
                f"a schema of type {self.name} needs no definition, and this one has "
                f"{len(definition)} bytes; leave it empty or choose another type"
            )
        return self.schema(definition)

    @override
    def incompatibilities(self, writer: Schema, reader: Schema) -> list[Incompatibility]:
        return []

    @override
    def difference(self, old: Schema, new: Schema) -> list[Change]:
        return []


class BytesFormat(PrimitiveFormat):
    """Payloads nobody looks into."""

    name = "bytes"
    schema = BytesSchema


class StringFormat(PrimitiveFormat):
    """Payloads of text."""

    name = "string"
    schema = StringSchema


class NumberFormat(PrimitiveFormat):
    """Payloads of one number."""

    name = "number"
    schema = NumberSchema


def _binary(payloads: Payloads) -> pa.Array:
    if isinstance(payloads, pa.ChunkedArray):
        payloads = payloads.combine_chunks()
    if isinstance(payloads, pa.Array):
        return payloads.cast(pa.binary())
    return pa.array(payloads, pa.binary())


def _absent(column: pa.Array) -> list[Failure]:
    rows = pc.indices_nonzero(column.is_null()).to_pylist()
    return [Failure(row, ABSENT) for row in rows]


def _text_failure(row: int, payload: bytes | None) -> Failure | None:
    if payload is None:
        return Failure(row, ABSENT)
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        return Failure(row, f"not UTF-8: {error.reason} at byte {error.start}")
    return None


def _without(column: pa.Array, failures: list[Failure]) -> pa.Array:
    if not failures:
        return column
    rows = column.to_pylist()
    for failure in failures:
        rows[failure.row] = None
    return pa.array(rows, pa.binary())
