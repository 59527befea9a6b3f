"""What schemas refuse."""

from pydanube.errors import InvalidRequest, Unavailable


class InvalidSchema(InvalidRequest):
    """A schema's definition is not one of its format."""

    code = "invalid_schema"


class SchemaTooComplex(InvalidRequest):
    """A schema exceeds a limit that protects the broker; the message names it."""

    code = "schema_too_complex"


class UnknownSchemaFormat(InvalidRequest):
    """A request names a schema format or compatibility mode that does not exist."""

    code = "unknown_schema_format"


class SchemaCompilerUnavailable(Unavailable):
    """Protobuf text cannot be compiled here now; descriptor sets still can be registered."""

    code = "schema_compiler_unavailable"
