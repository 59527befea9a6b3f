"""The format `json_schema`."""

import jsonschema_rs
import orjson
import pyarrow as pa
from typing_extensions import override

from pydanube.schemas.bounds import Json, load_definition
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
from pydanube.schemas.json_schema.bounds import check_document, expanded_size, value_depth_max
from pydanube.schemas.json_schema.closing import close
from pydanube.schemas.json_schema.columns import Columns
from pydanube.schemas.json_schema.comparing import compare
from pydanube.schemas.json_schema.containment import contains, pattern_options
from pydanube.schemas.json_schema.difference import changes
from pydanube.schemas.json_schema.document import Document
from pydanube.schemas.json_schema.reading import meaning
from pydanube.schemas.kept import Kept
from pydanube.schemas.limits import SchemaLimits

_validators: Kept[tuple[str, SchemaLimits], "JsonValidator"] = Kept(256)
_columns: Kept[str, Columns] = Kept(64)


class JsonSchema(Schema):
    """A JSON Schema of draft 4, 6, 7, 2019-09 or 2020-12, by its `$schema`; the last by default."""

    format = "json_schema"

    def __init__(self, definition: bytes, document: Document, limits: SchemaLimits) -> None:
        super().__init__(definition, orjson.dumps(document.root, option=orjson.OPT_SORT_KEYS))
        self.document = document
        self.limits = limits

    @override
    def validator(self) -> "JsonValidator":
        return _validators.get((self.fingerprint, self.limits), lambda: JsonValidator(self))

    @override
    def arrow_type(self) -> pa.DataType:
        return self.columns().arrow_type

    @override
    def decode(self, payloads: Payloads, writer: Schema | None = None) -> Decoded:
        return self.columns().decode(payload_list(payloads))

    def columns(self) -> Columns:
        """Return how values become columns; made once for equal schemas."""
        return _columns.get(self.fingerprint, lambda: Columns(self.document))


class JsonValidator:
    """Parses and validates every payload; safe to share."""

    def __init__(self, schema: JsonSchema) -> None:
        self._validator = compile_schema(schema.document, schema.limits)
        self._depth_max = value_depth_max(schema.document, schema.limits)

    def failures(self, payloads: Payloads) -> list[Failure]:
        """Return the rows that are not JSON, or not what the schema describes."""
        loads, is_valid = orjson.loads, self._validator.is_valid
        depth_max = self._depth_max
        failures: list[Failure] = []
        for row, payload in enumerate(payload_list(payloads)):
            try:
                value = loads(payload)  # type: ignore[arg-type]  # None is refused below.
            except orjson.JSONDecodeError as error:
                reason = ABSENT if payload is None else f"not JSON: {error}"
                failures.append(Failure(row, reason))
                continue
            if depth_max is not None and _nests_deeper(value, depth_max):
                failures.append(Failure(row, f"nests deeper than {depth_max} levels"))
            elif not is_valid(value):
                failures.append(Failure(row, self._reason(value)))
        return failures

    def _reason(self, value: Json) -> str:
        error = next(iter(self._validator.iter_errors(value)), None)
        if error is None:
            return "not what the schema describes"
        where = "/".join(str(step) for step in error.instance_path)
        message = error.message if len(error.message) <= 300 else error.message[:299] + "…"
        return f"/{where}: {message}"


class JsonSchemaFormat(SchemaFormat):
    """JSON Schema; references lead only to places within the definition."""

    name = "json_schema"

    def __init__(self, tools: SchemaTools) -> None:
        self._limits = tools.limits

    @override
    def parse(self, definition: bytes) -> JsonSchema:
        root = load_definition(definition, "JSON Schema", self._limits)
        if not isinstance(root, dict | bool):
            raise InvalidSchema("a JSON Schema is an object, true or false")
        document = Document(root)
        check_document(document, self._limits)
        compile_schema(document, self._limits)
        return JsonSchema(definition, document, self._limits)

    @override
    def incompatibilities(self, writer: Schema, reader: Schema) -> list[Incompatibility]:
        assert isinstance(writer, JsonSchema)
        assert isinstance(reader, JsonSchema)
        return _incompatibilities(writer, reader)

    @override
    def difference(self, old: Schema, new: Schema) -> list[Change]:
        assert isinstance(old, JsonSchema)
        assert isinstance(new, JsonSchema)
        return changes(old.document.root, new.document.root)


def compile_schema(document: Document, limits: SchemaLimits) -> jsonschema_rs.Validator:
    """Return a compiled validator that fetches nothing; raise InvalidSchema with the reason."""
    try:
        return jsonschema_rs.validator_for(
            document.root, offline=True, pattern_options=pattern_options(limits)
        )
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        where = "/".join(str(step) for step in getattr(error, "instance_path", ()))
        raise InvalidSchema(f"not a JSON Schema, at /{where}: {reason}") from error


def _incompatibilities(writer: JsonSchema, reader: JsonSchema) -> list[Incompatibility]:
    if meaning(writer.document.root) == meaning(reader.document.root):
        return []
    closed = Document(close(writer.document))
    comparison = compare(closed, reader.document)
    if comparison.broken:
        return comparison.broken + [
            fault for fault in comparison.faults if fault.rule != "type_narrowed"
        ]
    size = sum(expanded_size(each.document, each.limits) for each in (writer, reader))
    answer, reason = contains(reader.document, closed, size, reader.limits)
    if answer == "yes" or (answer == "unknown" and comparison.complete and not comparison.faults):
        return []
    if comparison.faults:
        return comparison.faults
    if answer == "no":
        return [Incompatibility("", "not_contained", "allows values", "does not allow all of them")]
    return [
        Incompatibility(
            "", "containment_unknown", "may write values", f"may refuse some of them: {reason}"
        )
    ]


def _nests_deeper(value: Json, levels: int) -> bool:
    level = [value]
    for _ in range(levels + 1):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True
