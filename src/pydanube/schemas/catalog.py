"""Finds schema formats: those built in, and those other packages bring along.

Both come through the entry point group `pydanube.schema_formats`, whose entries name a
`SchemaFormatFactory` under the format's name on the wire.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from pydanube.schemas.errors import UnknownSchemaFormat
from pydanube.schemas.format import SchemaFormat, SchemaFormatFactory, SchemaTools

ENTRY_POINT_GROUP = "pydanube.schema_formats"

# On the wire long before formats could be added, so they are known without loading anything.
_ALIASES = {
    "json": "json_schema",
    "proto": "protobuf",
    "int": "number",
    "int64": "number",
    "float": "number",
    "double": "number",
}


def load_format(name: str, tools: SchemaTools) -> SchemaFormat:
    """Return the format that `name` stands for, in any case, aliases included."""
    wanted = name.strip().lower()
    factory = _factory(_ALIASES.get(wanted, wanted))
    return factory(tools)


def format_names() -> list[str]:
    """Return the wire names of all installed formats, sorted."""
    return sorted(_installed())


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


@cache
def _factory(name: str) -> SchemaFormatFactory:
    installed = _installed()
    if not installed:
        raise UnknownSchemaFormat(
            "no schema format is installed: the package's metadata is older than its code; "
            "install it again (pip install --no-deps --no-build-isolation -e .)"
        )
    if name not in installed:
        raise UnknownSchemaFormat(
            f"schema type {name!r} does not exist; there are {', '.join(sorted(installed))}"
        )
    factory: SchemaFormatFactory = installed[name].load()
    return factory
