"""What the broker itself may refuse."""

from pydanube.errors import InvalidRequest


class InvalidConfig(InvalidRequest):
    """The configuration is wrong; the broker does not start with it."""

    code = "invalid_config"
