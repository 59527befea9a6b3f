"""Parsed schemas, kept while they are used: parsing costs far more than validating."""

from collections.abc import Callable

from pydanube.registry.records import VersionRecord
from pydanube.schemas.catalog import load_format
from pydanube.schemas.format import Schema, SchemaTools

SCHEMAS_MAX = 512
BYTES_MAX = 32 * 1024 * 1024
"""Of definitions, which a parsed schema grows with."""

SchemaKey = tuple[int, int]
"""Id of the subject, and version. It never comes to mean another schema."""


class CompiledSchemas:
    """The schemas used last. For the event loop; parsing itself may happen in any thread."""

    def __init__(self, tools: SchemaTools) -> None:
        self._tools = tools
        self._schemas: dict[SchemaKey, Schema] = {}
        self._bytes = 0

    def get(self, key: SchemaKey) -> Schema | None:
        """Return a schema that is kept."""
        schema = self._schemas.pop(key, None)
        if schema is not None:
            self._schemas[key] = schema  # Last: it was used last.
        return schema

    def keep(self, key: SchemaKey, schema: Schema) -> None:
        """Keep a schema in place of those not used for longest."""
        if self.get(key) is not None:
            return
        self._schemas[key] = schema
        self._bytes += len(schema.definition)
        while len(self._schemas) > SCHEMAS_MAX or (
            self._bytes > BYTES_MAX and len(self._schemas) > 1
        ):
            oldest = next(iter(self._schemas))
            self._bytes -= len(self._schemas.pop(oldest).definition)

    def parse(self, schema_type: str, definition: bytes) -> Schema:
        """Parse a definition as a user wrote it. May take a second; for a worker thread."""
        return load_format(schema_type, self._tools).parse(definition)

    def parsing(self, stored: VersionRecord) -> Callable[[], Schema]:
        """Return the work of parsing a stored version, for a worker thread."""
        definition = stored.definition if stored.canonical is None else stored.canonical
        return lambda: self.parse(stored.schema_type, definition)
