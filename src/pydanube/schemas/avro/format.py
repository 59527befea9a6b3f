"""The format `avro`."""

from collections.abc import Sequence

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType
from typing_extensions import override

from pydanube.errors import InvalidRequest
from pydanube.schemas.avro.canonical import canonical_bytes, to_json
from pydanube.schemas.avro.columns import Columns, Datum, decoder_schema
from pydanube.schemas.avro.containers import MAGIC, Container, read_blocks, read_header
from pydanube.schemas.avro.difference import changes
from pydanube.schemas.avro.parsing import parse_definition
from pydanube.schemas.avro.resolution import resolve
from pydanube.schemas.avro.types import AvroType
from pydanube.schemas.avro.walking import Malformed, Walk, compile_walk
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
    payload_list,
)
from pydanube.schemas.kept import Kept
from pydanube.schemas.limits import SchemaLimits

_validators: Kept[tuple[str, SchemaLimits], "AvroValidator"] = Kept(256)
_columns: Kept[str, Columns] = Kept(64)
_decoder_schemas: Kept[str, Datum] = Kept(256)
_writers: Kept[tuple[bytes, SchemaLimits], "AvroSchema"] = Kept(64)


class AvroSchema(Schema):
    """An Avro schema; payloads are bare datums or object container files."""

    format = "avro"

    def __init__(self, definition: bytes, avro_type: AvroType, limits: SchemaLimits) -> None:
        super().__init__(definition, canonical_bytes(avro_type))
        self.type = avro_type
        self.limits = limits

    @override
    def validator(self) -> "AvroValidator":
        return _validators.get((self.fingerprint, self.limits), lambda: AvroValidator(self))

    @override
    def arrow_type(self) -> pa.DataType:
        return self.columns().arrow_type

    @override
    def decode(self, payloads: Payloads, writer: Schema | None = None) -> Decoded:
        assert writer is None or isinstance(writer, AvroSchema)
        return _decode(self, writer or self, payload_list(payloads))

    def columns(self) -> Columns:
        """Return how values become columns; made once for equal schemas."""
        return _columns.get(self.fingerprint, lambda: Columns(self.type))

    def decoder_schema(self) -> Datum:
        """Return what the decoder needs to know of this schema as the writer's."""
        return _decoder_schemas.get(self.fingerprint, lambda: decoder_schema(self.type))


class AvroValidator:
    """Walks over every payload; safe to share."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._walk = compile_walk(schema.type, schema.limits.payload_depth_max)

    def failures(self, payloads: Payloads) -> list[Failure]:
        """Return the rows that are neither a datum nor a container of datums."""
        walk = self._walk
        failures: list[Failure] = []
        for row, payload in enumerate(payload_list(payloads)):
            try:
                if payload is not None and walk(payload, 0, 0) == len(payload):
                    continue
            except (IndexError, Malformed, RecursionError):
                pass
            reason = self._reason(payload)
            if reason is not None:
                failures.append(Failure(row, reason))
        return failures

    def _reason(self, payload: bytes | None) -> str | None:
        """Look at a payload that is no bare datum more closely."""
        if payload is None:
            return ABSENT
        try:
            if payload.startswith(MAGIC):
                datums_of(self._schema, payload)
            else:
                check_datum(self._walk, payload)
        except Malformed as error:
            return str(error)
        return None


class AvroFormat(SchemaFormat):
    """Avro, by the rules of specification 1.12."""

    name = "avro"

    def __init__(self, tools: SchemaTools) -> None:
        self._limits = tools.limits

    @override
    def parse(self, definition: bytes) -> AvroSchema:
        return parse_avro(definition, self._limits)

    @override
    def incompatibilities(self, writer: Schema, reader: Schema) -> list[Incompatibility]:
        assert isinstance(writer, AvroSchema)
        assert isinstance(reader, AvroSchema)
        return resolve(writer.type, reader.type)

    @override
    def difference(self, old: Schema, new: Schema) -> list[Change]:
        assert isinstance(old, AvroSchema)
        assert isinstance(new, AvroSchema)
        return changes(old.type, new.type)


def parse_avro(definition: bytes, limits: SchemaLimits) -> AvroSchema:
    """Return a schema that the decoder understands as well."""
    avro_type = parse_definition(definition, limits)
    try:
        fastavro.parse_schema(to_json(avro_type))
    except (SchemaParseException, UnknownType) as error:
        raise InvalidSchema(f"the Avro schema cannot be decoded with: {error}") from error
    return AvroSchema(definition, avro_type, limits)


def check_datum(walk: Walk, datum: bytes) -> None:
    """Raise Malformed unless the bytes are exactly one datum."""
    try:
        end = walk(datum, 0, 0)
    except IndexError as error:
        raise Malformed(f"the datum ends too early, after {len(datum)} bytes") from error
    except RecursionError as error:
        raise Malformed("the datum nests too deep") from error
    if end != len(datum):
        raise Malformed(f"{len(datum) - end} bytes are left behind the datum, which ends at {end}")


def datums_of(schema: AvroSchema, payload: bytes) -> tuple[AvroSchema, list[bytes]]:
    """Return the schema that a container was written with, and its datums, at least one."""
    container = read_header(payload)
    writer = _writer_of(container, schema)
    walk = compile_walk(writer.type, schema.limits.payload_depth_max)
    datums: list[bytes] = []
    for count, block in read_blocks(container, schema.limits.container_expansion_max):
        datums += _split(walk, count, block)
    if not datums:
        raise Malformed("the container has no datum")
    return writer, datums


def _split(walk: Walk, count: int, block: bytes) -> list[bytes]:
    if count > max(1, len(block)):
        raise Malformed(f"a block of {len(block)} bytes announces {count} datums")
    datums: list[bytes] = []
    at = 0
    for _ in range(count):
        try:
            end = walk(block, at, 0)
        except (IndexError, RecursionError) as error:
            raise Malformed("a datum in the container ends too early") from error
        datums.append(block[at:end])
        at = end
    if at != len(block):
        raise Malformed(f"{len(block) - at} bytes are left in a block of the container")
    return datums


def _writer_of(container: Container, reader: AvroSchema) -> AvroSchema:
    definition, limits = container.definition, reader.limits
    try:
        writer = _writers.get((definition, limits), lambda: parse_avro(definition, limits))
    except InvalidRequest as error:
        raise Malformed(f"the container's own schema: {error}") from error
    if writer.fingerprint != reader.fingerprint:
        faults = resolve(writer.type, reader.type)
        if faults:
            raise Malformed(f"the container was written with another schema: {faults[0]}")
    return writer


def _decode(reader: AvroSchema, writer: AvroSchema, payloads: Sequence[bytes | None]) -> Decoded:
    columns = reader.columns()
    walk = compile_walk(writer.type, writer.limits.payload_depth_max)
    written_as = None if writer.fingerprint == reader.fingerprint else writer.decoder_schema()
    values: list[Datum] = []
    failures: list[Failure] = []
    for row, payload in enumerate(payloads):
        try:
            datum, source = _one_datum(reader, walk, payload)
            values.append(columns.read(datum, source or written_as))
        except (Malformed, ValueError, TypeError, LookupError, EOFError) as error:
            values.append(None)
            failures.append(Failure(row, str(error) or type(error).__name__))
    return Decoded(columns.build(values), failures)


def _one_datum(reader: AvroSchema, walk: Walk, payload: bytes | None) -> tuple[bytes, Datum]:
    """Return the datum of a payload, and the decoder's schema of the container it came in."""
    if payload is None:
        raise Malformed(ABSENT)
    try:
        check_datum(walk, payload)
    except Malformed:
        if not payload.startswith(MAGIC):
            raise
    else:
        return payload, None
    writer, datums = datums_of(reader, payload)
    if len(datums) > 1:
        raise Malformed(f"the container has {len(datums)} datums; a message's value is one")
    return datums[0], writer.decoder_schema()
