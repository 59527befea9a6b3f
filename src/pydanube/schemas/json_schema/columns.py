"""JSON values as Arrow columns."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import orjson
import pyarrow as pa

from pydanube.schemas.bounds import Json
from pydanube.schemas.fitting import fit
from pydanube.schemas.format import ABSENT, Decoded, Failure
from pydanube.schemas.json_schema.document import Document, Subschema

_Convert: TypeAlias = Callable[[Any], Any]
_COLUMNS_MAX = 10_000
_SCALARS = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}


class Columns:
    """How values of one schema become a column.

    What has no column type of its own (free objects, several types, recursion) becomes JSON text.
    """

    def __init__(self, document: Document) -> None:
        shape = _Shapes(document).shape(document.root, ())
        self.arrow_type = shape.arrow_type
        self._stored_type = shape.stored_type
        self._convert = shape.convert

    def decode(self, payloads: Sequence[bytes | None]) -> Decoded:
        """Return the column; rows that are not JSON or do not fit are null in it."""
        values: list[Json] = []
        failures: list[Failure] = []
        for row, payload in enumerate(payloads):
            try:
                values.append(self._value(payload))
            except (ValueError, TypeError, AttributeError) as error:
                values.append(None)
                failures.append(Failure(row, str(error)))
        try:
            return Decoded(self._column(values), failures)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            return self._one_by_one(values, failures)

    def _value(self, payload: bytes | None) -> Json:
        if payload is None:
            raise ValueError(ABSENT)
        try:
            value = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}") from error
        if self._convert is None or value is None:
            return value
        return self._convert(value)

    def _column(self, values: list[Json]) -> pa.Array:
        return fit(pa.array(values, self._stored_type), self.arrow_type)

    def _one_by_one(self, values: list[Json], failures: list[Failure]) -> Decoded:
        """Find the rows that keep the others from being one column."""
        columns: list[pa.Array] = []
        failed = list(failures)
        for row, value in enumerate(values):
            try:
                columns.append(self._column([value]))
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                columns.append(self._column([None]))
                failed.append(Failure(row, str(error)))
        return Decoded(pa.concat_arrays(columns), sorted(failed, key=lambda failure: failure.row))


class _Shape:
    def __init__(
        self,
        arrow_type: pa.DataType,
        stored_type: pa.DataType | None = None,
        convert: _Convert | None = None,
    ) -> None:
        self.arrow_type = arrow_type
        self.stored_type = arrow_type if stored_type is None else stored_type
        self.convert = convert


class _Shapes:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = _COLUMNS_MAX

    def shape(self, schema: Subschema, within: tuple[int, ...]) -> _Shape:
        self._left -= 1
        schema = self._plain(schema)
        if not isinstance(schema, dict) or id(schema) in within or self._left < 0:
            return _text()
        inner = (*within, id(schema))
        match _only_type(schema):
            case "object":
                return self._object(schema, inner)
            case "array" if isinstance(schema.get("items"), dict):
                return _list_of(self.shape(schema["items"], inner))
            case "string" if schema.get("format") in _FORMATS:
                return _Shape(_FORMATS[schema["format"]], pa.string())
            case "string" | "integer" | "number" | "boolean" as kind:
                return _Shape(_SCALARS[kind])
            case _:
                return _text()

    def _plain(self, schema: Subschema) -> Subschema:
        """Look through references, and through alternatives of which all but one are null."""
        for _ in range(32):
            if not isinstance(schema, dict):
                return schema
            if isinstance(schema.get("$ref"), str):
                schema = self._document.resolve(schema["$ref"])
                continue
            inner = _without_null(schema)
            if inner is None:
                return schema
            schema = inner
        return schema

    def _object(self, schema: dict[str, Json], within: tuple[int, ...]) -> _Shape:
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            return _struct_of(
                {name: self.shape(child, within) for name, child in properties.items()}
            )
        rest = schema.get("additionalProperties")
        if isinstance(rest, dict) and "patternProperties" not in schema:
            return _map_of(self.shape(rest, within))
        return _text()


def _text() -> _Shape:
    return _Shape(pa.string(), pa.string(), _json_text)


def _json_text(value: Json) -> str:
    return orjson.dumps(value).decode()


def _struct_of(fields: dict[str, _Shape]) -> _Shape:
    arrow_type = pa.struct([(name, each.arrow_type) for name, each in fields.items()])
    stored_type = pa.struct([(name, each.stored_type) for name, each in fields.items()])
    converters = [(name, each.convert) for name, each in fields.items() if each.convert]
    if not converters:
        return _Shape(arrow_type, stored_type)

    def convert(value: Json) -> Json:
        for name, inner in converters:
            part = value.get(name)
            if part is not None:
                value[name] = inner(part)
        return value

    return _Shape(arrow_type, stored_type, convert)


def _list_of(item: _Shape) -> _Shape:
    inner = item.convert
    arrow_type, stored_type = pa.list_(item.arrow_type), pa.list_(item.stored_type)
    if inner is None:
        return _Shape(arrow_type, stored_type)
    return _Shape(
        arrow_type,
        stored_type,
        lambda value: [None if each is None else inner(each) for each in value],
    )


def _map_of(item: _Shape) -> _Shape:
    inner = item.convert
    arrow_type = pa.map_(pa.string(), item.arrow_type)
    stored_type = pa.map_(pa.string(), item.stored_type)
    if inner is None:
        return _Shape(arrow_type, stored_type)
    return _Shape(
        arrow_type,
        stored_type,
        lambda value: {key: None if each is None else inner(each) for key, each in value.items()},
    )


def _only_type(schema: dict[str, Json]) -> str | None:
    """Return the one type of a schema beside null, also if its values or properties tell it."""
    declared = schema.get("type")
    if isinstance(declared, list):
        others = [each for each in declared if each != "null"]
        declared = others[0] if len(others) == 1 else None
    if declared is None and "type" not in schema:
        if isinstance(schema.get("properties"), dict):
            return "object"
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        if values and all(isinstance(value, str) for value in values):
            return "string"
    return declared if isinstance(declared, str) else None


def _without_null(schema: dict[str, Json]) -> Subschema | None:
    for keyword in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(keyword)
        if not isinstance(branches, list) or "type" in schema or "properties" in schema:
            continue
        others = [branch for branch in branches if branch != {"type": "null"}]
        if len(others) == 1 and (keyword != "allOf" or len(branches) == 1):
            return others[0]
    return None
