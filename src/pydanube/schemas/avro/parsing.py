"""From an Avro definition to its types, by the rules of the specification and our limits."""

import re
from typing import Any, cast

from pydanube.schemas.avro.defaults import is_default_of
from pydanube.schemas.avro.soundness import (
    check_columns,
    check_values_are_finite,
    check_work_per_byte,
)
from pydanube.schemas.avro.types import (
    MISSING,
    PRIMITIVES,
    Array,
    AvroType,
    Enumeration,
    Field,
    Fixed,
    Logical,
    Map,
    Named,
    Primitive,
    Record,
    Union,
)
from pydanube.schemas.bounds import Json, exceeded, load_definition
from pydanube.schemas.errors import InvalidSchema
from pydanube.schemas.limits import SchemaLimits

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FIXED_BYTES_MAX = 1 << 20
_DECIMAL_DIGITS_MAX = 1_000

_LOGICAL_ON = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "uuid": ("string", "fixed"),
    "duration": ("fixed",),
    "decimal": ("bytes", "fixed"),
}


def parse_definition(definition: bytes, limits: SchemaLimits) -> AvroType:
    """Return the type a definition describes; raise InvalidSchema or SchemaTooComplex."""
    parser = _Parser(limits)
    root = parser.parse(load_definition(definition, "Avro schema", limits), "", "")
    records = [named for named in parser.named.values() if isinstance(named, Record)]
    check_values_are_finite(records)
    check_work_per_byte(records, parser.arrays, limits)
    check_columns(root, limits)
    return root


class _Parser:
    """Knows the named types met so far; used for one definition."""

    def __init__(self, limits: SchemaLimits) -> None:
        self._limits = limits
        self.named: dict[str, Named] = {}
        self.arrays: dict[str, Array] = {}
        self._open: list[Record] = []
        self._references = 0

    def parse(self, spec: Json, namespace: str, path: str) -> AvroType:
        match spec:
            case str():
                return self._primitive_or_reference(spec, namespace, path)
            case list():
                return self._union(spec, namespace, path)
            case dict():
                return self._complex(spec, namespace, path)
            case _:
                pass
        raise InvalidSchema(f"{_at(path)}a type is a name, an object or a list, not {spec!r}")

    def _primitive_or_reference(self, name: str, namespace: str, path: str) -> AvroType:
        if name in PRIMITIVES:
            return Primitive(cast(Any, name))
        self._references += 1
        if self._references > self._limits.references_max:
            raise exceeded("the schema uses too many named types", "references_max", self._limits)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self.named.get(full) or self.named.get(name)
        if found is None:
            raise InvalidSchema(f"{_at(path)}type {name!r} is not defined before it is used")
        if isinstance(found, Record) and found in self._open:
            found.recursive = True
        return found

    def _union(self, specs: list[Any], namespace: str, path: str) -> Union:
        if len(specs) > self._limits.fields_max:
            raise exceeded(f"{_at(path)}a union has too many branches", "fields_max", self._limits)
        if not specs:
            raise InvalidSchema(f"{_at(path)}a union needs a branch")
        branches = tuple(self.parse(spec, namespace, path) for spec in specs)
        seen: set[str] = set()
        for branch in branches:
            if isinstance(branch, Union):
                raise InvalidSchema(f"{_at(path)}a union may not stand directly in a union")
            key = branch.name if isinstance(branch, Fixed | Enumeration | Record) else branch.kind
            if key in seen:
                raise InvalidSchema(f"{_at(path)}the union has {key} twice")
            seen.add(key)
        return Union(branches)

    def _complex(self, spec: dict[str, Any], namespace: str, path: str) -> AvroType:
        kind = spec.get("type")
        match kind:
            case "record" | "error":
                return self._record(spec, namespace, path)
            case "enum":
                return self._enumeration(spec, namespace, path)
            case "fixed":
                return self._fixed(spec, namespace, path)
            case "array":
                return self._array(spec, namespace, path)
            case "map":
                values = self.parse(_required(spec, "values", path), namespace, path + "{}")
                return Map(values)
            case str() if kind in PRIMITIVES:
                return Primitive(cast(Any, kind), _logical(spec, kind, 0))
            case None:
                raise InvalidSchema(f'{_at(path)}an object that is a type needs "type"')
            case _:
                pass
        return self.parse(kind, namespace, path)

    def _array(self, spec: dict[str, Any], namespace: str, path: str) -> Array:
        items = self.parse(_required(spec, "items", path), namespace, path + "[]")
        array = Array(items)
        self.arrays[path] = array
        return array

    def _record(self, spec: dict[str, Any], namespace: str, path: str) -> Record:
        name, aliases = self._names(spec, namespace, path)
        record = Record(name, aliases, _doc(spec))
        self._define(record, path)
        specs = _required(spec, "fields", path)
        if not isinstance(specs, list):
            raise InvalidSchema(f"{_at(path)}fields of record {name} are a list")
        if len(specs) > self._limits.fields_max:
            raise exceeded(f"record {name} has {len(specs)} fields", "fields_max", self._limits)
        self._open.append(record)
        if len(self._open) > self._limits.depth_max:
            raise exceeded(f"record {name} stands too deep", "depth_max", self._limits)
        seen: set[str] = set()
        inner = name.rpartition(".")[0]
        for each in specs:
            parsed = self._field(each, inner, path)
            if parsed.name in seen:
                raise InvalidSchema(f"{_at(path)}record {name} has field {parsed.name!r} twice")
            seen.add(parsed.name)
            record.fields.append(parsed)
        self._open.pop()
        return record

    def _field(self, spec: Json, namespace: str, path: str) -> Field:
        if not isinstance(spec, dict):
            raise InvalidSchema(f"{_at(path)}a field is an object, not {spec!r}")
        name = _simple_name(spec.get("name"), "a field's name", path, self._limits)
        here = f"{path}.{name}" if path else name
        field_type = self.parse(_required(spec, "type", here), namespace, here)
        default = spec.get("default", MISSING)
        if default is not MISSING and not is_default_of(field_type, default):
            raise InvalidSchema(f"{_at(here)}the default {default!r} is not of the field's type")
        order = spec.get("order", "ascending")
        if order not in ("ascending", "descending", "ignore"):
            raise InvalidSchema(f"{_at(here)}order is ascending, descending or ignore")
        aliases = tuple(
            _simple_name(alias, "a field's alias", here, self._limits)
            for alias in _strings(spec, "aliases", here)
        )
        return Field(name, aliases, field_type, default, order, _doc(spec))

    def _enumeration(self, spec: dict[str, Any], namespace: str, path: str) -> Enumeration:
        name, aliases = self._names(spec, namespace, path)
        symbols = _strings(spec, "symbols", path)
        if len(symbols) > self._limits.enum_values_max:
            raise exceeded(
                f"enum {name} has {len(symbols)} symbols", "enum_values_max", self._limits
            )
        if not symbols or len(set(symbols)) != len(symbols):
            raise InvalidSchema(f"{_at(path)}enum {name} needs symbols, each one once")
        for symbol in symbols:
            _simple_name(symbol, "a symbol", path, self._limits)
        default = spec.get("default")
        if default is not None and default not in symbols:
            raise InvalidSchema(f"{_at(path)}default {default!r} of enum {name} is no symbol of it")
        enumeration = Enumeration(name, aliases, tuple(symbols), default, _doc(spec))
        self._define(enumeration, path)
        return enumeration

    def _fixed(self, spec: dict[str, Any], namespace: str, path: str) -> Fixed:
        name, aliases = self._names(spec, namespace, path)
        size = spec.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _FIXED_BYTES_MAX:
            raise InvalidSchema(
                f"{_at(path)}size of fixed {name} is a number from 0 to {_FIXED_BYTES_MAX}"
            )
        fixed = Fixed(name, aliases, size, _logical(spec, "fixed", size))
        self._define(fixed, path)
        return fixed

    def _names(
        self, spec: dict[str, Any], namespace: str, path: str
    ) -> tuple[str, tuple[str, ...]]:
        own = spec.get("namespace", namespace)
        full = _full_name(_required(spec, "name", path), own, path, self._limits)
        inner = full.rpartition(".")[0]
        aliases = _strings(spec, "aliases", path)
        return full, tuple(_full_name(alias, inner, path, self._limits) for alias in aliases)

    def _define(self, named: Named, path: str) -> None:
        if named.name in self.named:
            raise InvalidSchema(f"{_at(path)}type {named.name} is defined twice")
        self.named[named.name] = named


def _full_name(name: Json, namespace: Json, path: str, limits: SchemaLimits) -> str:
    if not isinstance(name, str) or not isinstance(namespace, str):
        raise InvalidSchema(f"{_at(path)}names and namespaces are strings")
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    for part in full.split("."):
        _simple_name(part, f"a part of the name {full!r}", path, limits)
    if len(full) > limits.name_chars_max:
        raise exceeded(f"the name {full[:40]!r}… is too long", "name_chars_max", limits)
    if full in PRIMITIVES:
        raise InvalidSchema(f"{_at(path)}{full} is a type of Avro and cannot be defined")
    return full


def _simple_name(name: Json, what: str, path: str, limits: SchemaLimits) -> str:
    if not isinstance(name, str) or len(name) > limits.name_chars_max or not _NAME.match(name):
        raise InvalidSchema(f"{_at(path)}{what} is letters, digits and _, not {str(name)[:60]!r}")
    return name


def _logical(spec: dict[str, Any], kind: str, size: int) -> Logical | None:
    """Return the logical type, or None for one the specification tells readers to ignore."""
    name = spec.get("logicalType")
    if not isinstance(name, str) or kind not in _LOGICAL_ON.get(name, ()):
        return None
    if name == "decimal":
        return _decimal(spec, kind, size)
    if kind == "fixed" and size != {"uuid": 16, "duration": 12}[name]:
        return None
    return Logical(name)


def _decimal(spec: dict[str, Any], kind: str, size: int) -> Logical | None:
    precision, scale = spec.get("precision"), spec.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return None
    if not 0 < precision <= _DECIMAL_DIGITS_MAX or not 0 <= scale <= precision:
        return None
    if kind == "fixed" and 10**precision > 2 ** (8 * size - 1):
        return None
    return Logical("decimal", precision, scale)


def _required(spec: dict[str, Any], key: str, path: str) -> Json:
    if key not in spec:
        raise InvalidSchema(f'{_at(path)}"{key}" is missing')
    return spec[key]


def _strings(spec: dict[str, Any], key: str, path: str) -> list[str]:
    values = spec.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InvalidSchema(f'{_at(path)}"{key}" is a list of strings')
    return values


def _doc(spec: dict[str, Any]) -> str | None:
    doc = spec.get("doc")
    return doc if isinstance(doc, str) else None


def _at(path: str) -> str:
    return f"{path}: " if path else ""
