"""Errors that the client alone meets."""

from pydanube.errors import Conflict


class SessionUnknown(Conflict):
    """The broker does not know the session, or no longer; nothing was stored."""

    code = "session_unknown"
