"""Conditions on dead letters, as text: `step = 'columns' and offset >= 500`.

The language is pyiceberg's: comparisons, `in`, `is null`, `like 'begins%'`, and, or, not.
"""

from typing import Any

import pyarrow.compute as pc
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestamptzType,
)

from pydanube.errors import InvalidRequest

_COLUMNS: dict[str, PrimitiveType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "publish_time": TimestamptzType(),
    "producer_name": StringType(),
    "routing_key": StringType(),
    "schema_id": LongType(),
    "schema_version": IntegerType(),
    "reason": StringType(),
    "step": StringType(),
    "failed_at": TimestamptzType(),
}
_SCHEMA = Schema(
    *(NestedField(number, name, kind) for number, (name, kind) in enumerate(_COLUMNS.items(), 1))
)


def condition_of(text: str) -> pc.Expression | None:
    """Return a condition for Arrow's tables; None: there is none. InvalidRequest says why not."""
    if not text.strip():
        return None
    try:
        bound = bind(_SCHEMA, parse(text), case_sensitive=True)
        found: Any = expression_to_pyarrow(bound, _SCHEMA)
    except Exception as error:
        # The parser fails in many ways, all of which mean that the text makes no sense.
        raise InvalidRequest(
            f"--where {text!r} makes no sense: {error}. Write it as \"step = 'columns' and "
            f'offset >= 500"; there are the columns {", ".join(_COLUMNS)}'
        ) from error
    return found
