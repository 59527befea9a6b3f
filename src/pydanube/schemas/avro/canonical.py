"""One spelling for every Avro schema.

Unlike the specification's parsing canonical form, it keeps what readers need: defaults, aliases,
logical types and documentation. Attributes that Avro does not define are left out.
"""

from typing import Any

import orjson

from pydanube.schemas.avro.types import (
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
from pydanube.schemas.bounds import Json


def canonical_bytes(avro_type: AvroType) -> bytes:
    """Return the canonical form; parsing it gives an equal type."""
    return orjson.dumps(to_json(avro_type), option=orjson.OPT_SORT_KEYS)


def to_json(avro_type: AvroType, *, logical: bool = True) -> Json:
    """Return the type as JSON values, each named type defined where it first occurs."""
    return _Writer(logical).write(avro_type)


class _Writer:
    def __init__(self, logical: bool) -> None:
        self._logical = logical
        self._written: set[str] = set()

    def write(self, avro_type: AvroType) -> Json:
        match avro_type:
            case Primitive(kind=kind, logical=logical):
                attributes = self._attributes(logical)
                return {"type": kind, **attributes} if attributes else kind
            case Array(items=items):
                return {"type": "array", "items": self.write(items)}
            case Map(values=values):
                return {"type": "map", "values": self.write(values)}
            case Union(branches=branches):
                return [self.write(branch) for branch in branches]
            case Fixed() | Enumeration() | Record():
                return self._named(avro_type)

    def _named(self, named: Named) -> Json:
        if named.name in self._written:
            return named.name
        self._written.add(named.name)
        namespace, _, name = named.name.rpartition(".")
        spec: dict[str, Any] = {"type": named.kind, "name": name, "namespace": namespace}
        if named.aliases:
            spec["aliases"] = list(named.aliases)
        match named:
            case Fixed(size=size, logical=logical):
                spec |= {"size": size, **self._attributes(logical)}
            case Enumeration(symbols=symbols, default=default, doc=doc):
                spec |= {"symbols": list(symbols)}
                if default is not None:
                    spec["default"] = default
                _add_doc(spec, doc)
            case Record(fields=fields, doc=doc):
                spec["fields"] = [self._field(each) for each in fields]
                _add_doc(spec, doc)
        return spec

    def _field(self, each: Field) -> dict[str, Any]:
        spec: dict[str, Any] = {"name": each.name, "type": self.write(each.type)}
        if each.has_default:
            spec["default"] = each.default
        if each.aliases:
            spec["aliases"] = list(each.aliases)
        if each.order != "ascending":
            spec["order"] = each.order
        _add_doc(spec, each.doc)
        return spec

    def _attributes(self, logical: Logical | None) -> dict[str, Any]:
        if logical is None or not self._logical:
            return {}
        if logical.kind == "decimal":
            return {
                "logicalType": "decimal",
                "precision": logical.precision,
                "scale": logical.scale,
            }
        return {"logicalType": logical.kind}


def _add_doc(spec: dict[str, Any], doc: str | None) -> None:
    if doc is not None:
        spec["doc"] = doc
