"""Does one JSON Schema allow everything another one allows?"""

from typing import Literal, TypeAlias

import jsonschema_rs

from pydanube.schemas.json_schema.combinations import combination_work
from pydanube.schemas.json_schema.document import Document
from pydanube.schemas.limits import SchemaLimits

Containment: TypeAlias = Literal["yes", "no", "unknown"]

_NODES_MAX = 5_000
_WORK_MAX = 2_048
"""Beyond these, comparing may take seconds, in one step that cannot be ended."""


def pattern_options(limits: SchemaLimits) -> jsonschema_rs.FancyRegexOptions:
    """Return options under which every pattern ends, whatever it is matched with."""
    return jsonschema_rs.FancyRegexOptions(
        backtrack_limit=limits.pattern_steps_max,
        size_limit=limits.pattern_program_bytes_max,
        dfa_size_limit=limits.pattern_program_bytes_max,
    )


def contains(
    reader: Document, writer: Document, size: int, limits: SchemaLimits
) -> tuple[Containment, str]:
    """Return whether `reader` allows all that `writer` allows, and why that is unknown if so.

    `size` is that of both, with references replaced.
    """
    if size > _NODES_MAX:
        return "unknown", f"the schemas have more than {_NODES_MAX} parts"
    if combination_work(reader) + combination_work(writer) > _WORK_MAX:
        return "unknown", "there are too many combinations of alternatives to compare"
    options = pattern_options(limits)
    try:
        outer = jsonschema_rs.canonicalize(reader.root, pattern_options=options, offline=True)
        inner = jsonschema_rs.canonicalize(writer.root, pattern_options=options, offline=True)
        answer = outer.covers(inner)
    except (ValueError, TypeError) as error:
        return "unknown", str(error).splitlines()[0]
    if answer == jsonschema_rs.canonical.Containment.YES:
        return "yes", ""
    if answer == jsonschema_rs.canonical.Containment.NO:
        return "no", ""
    return "unknown", "patterns, recursion or combinations that cannot be compared"
