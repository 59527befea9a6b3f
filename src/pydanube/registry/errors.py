"""What the registry refuses."""

from pydanube.errors import AccessDenied, Conflict, NotFound


class SchemaNotFound(NotFound):
    """There is no such subject, id or version."""

    code = "schema_not_found"


class IncompatibleSchema(Conflict):
    """A definition may not follow the earlier versions under the subject's compatibility mode."""

    code = "incompatible_schema"


class SchemaInUse(Conflict):
    """What is to be deleted is needed by a topic."""

    code = "schema_in_use"


class TooManySchemas(AccessDenied):
    """The registry has as many subjects, or the subject as many versions, as it may have."""

    code = "too_many_schemas"
