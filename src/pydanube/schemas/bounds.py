"""Reads the JSON that definitions are written in, within limits."""

from typing import Any, TypeAlias

import orjson

from pydanube.schemas.errors import InvalidSchema, SchemaTooComplex
from pydanube.schemas.limits import SchemaLimits

Json: TypeAlias = Any
"""A JSON value. Its shape is what code that takes one finds out."""


def check_size(definition: bytes, limits: SchemaLimits) -> None:
    """Raise SchemaTooComplex if the definition is longer than allowed."""
    if len(definition) > limits.definition_bytes_max:
        raise SchemaTooComplex(
            f"the definition has {len(definition)} bytes; definition_bytes_max allows "
            f"{limits.definition_bytes_max}"
        )


def load_definition(definition: bytes, what: str, limits: SchemaLimits) -> Json:
    """Return the JSON value of a definition whose size, depth and node count are within limits."""
    check_size(definition, limits)
    try:
        value = orjson.loads(definition)
    except orjson.JSONDecodeError as error:
        raise InvalidSchema(f"the {what} is not JSON: {error}") from error
    _check_shape(value, limits)
    return value


def exceeded(what: str, limit_name: str, limits: SchemaLimits) -> SchemaTooComplex:
    """Return the error that says which limit `what` exceeds."""
    return SchemaTooComplex(f"{what}; {limit_name} allows {getattr(limits, limit_name)}")


def _check_shape(root: Json, limits: SchemaLimits) -> None:
    level: list[Any] = [root]
    depth = nodes = 0
    while level:
        depth += 1
        nodes += len(level)
        if depth > limits.depth_max:
            raise exceeded("the definition nests too deep", "depth_max", limits)
        if nodes > limits.nodes_max:
            raise exceeded("the definition has too many parts", "nodes_max", limits)
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
        level = below
