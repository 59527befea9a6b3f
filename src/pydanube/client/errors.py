"""Errors that the client alone meets."""

from pydanube.errors import Conflict, InvalidRequest


class ClientClosed(Conflict):
    """The client was closed: a call under way may or may not have been done, a new one was not."""

    code = "client_closed"


class SessionUnknown(Conflict):
    """The broker does not know the session, or no longer; nothing was stored."""

    code = "session_unknown"


class UndecodablePayload(InvalidRequest):
    """A message's payload is not of the type that its receiver expects."""

    code = "undecodable_payload"
