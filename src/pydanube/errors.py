"""The kinds of error, named by what the caller should do next.

    DanubeError
    ├── InvalidRequest      mend the request; repeating it cannot help
    │   ├── NotFound        what it names does not exist
    │   └── NotSupported    this broker does not offer it
    ├── AccessDenied        ask for a permission, or for a higher limit
    ├── Conflict            look at the present state, then decide again
    │   └── AlreadyExists   what it would create is there
    ├── WrongBroker         look the topic up again
    ├── Overloaded          slow down, then repeat
    ├── Unavailable         repeat later; nothing is wrong with the request
    └── Corruption          stored bytes are damaged; an operator must decide

A room's own errors subclass exactly one of these and live in that room's `errors.py`.
`code` is public and permanent; `retryable` tells clients whether repeating can help.
"""

from typing import ClassVar


class DanubeError(Exception):
    """Anything PyDanube refuses or fails to do."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    next_step: ClassVar[str | None] = None
    """What helps, where that is another thing than for others of its kind."""


class InvalidRequest(DanubeError):
    """The request itself is wrong; repeating it cannot help."""

    code = "invalid_request"


class NotFound(InvalidRequest):
    """The request names something that does not exist."""

    code = "not_found"


class NotSupported(InvalidRequest):
    """This broker, or this mode of it, does not offer the operation."""

    code = "not_supported"


class AccessDenied(DanubeError):
    """The caller may not do this."""

    code = "access_denied"


class Conflict(DanubeError):
    """The request contradicts the present state."""

    code = "conflict"


class AlreadyExists(Conflict):
    """What the request would create is there already."""

    code = "already_exists"


class WrongBroker(DanubeError):
    """This broker does not serve the topic; `owner` does, when known."""

    code = "wrong_broker"
    retryable = True

    def __init__(self, topic: str, owner: str | None) -> None:
        super().__init__(f"topic {topic} is served by {owner or 'no broker right now'}")
        self.topic = topic
        self.owner = owner


class Overloaded(DanubeError):
    """A limit that time will lift has been reached."""

    code = "overloaded"
    retryable = True


class Unavailable(DanubeError):
    """The broker cannot do this now and may be able to later."""

    code = "unavailable"
    retryable = True


class Corruption(DanubeError):
    """Stored bytes are not what was written; nothing is changed until an operator decides."""

    code = "corruption"
