"""How producers refer to schemas, and how strictly topics look at what they are sent."""

from typing import Literal, get_args

from msgspec import Struct

from pydanube.errors import InvalidRequest

ValidationPolicy = Literal["none", "warn", "enforce"]
"""none: nothing is looked at. warn: accepted and counted. enforce: refused."""

VERSION_ASSUMED = 1
"""What a message means that names a schema without a version."""
VERSION_MAX = 2**32 - 1
SCHEMA_ID_MAX = 2**64 - 1


class SchemaReference(Struct, frozen=True, kw_only=True):
    """Which schema a producer's messages have: the latest, one version, or the latest from one on.

    At most one of `version` and `min_version` is given.
    """

    subject: str
    version: int | None = None
    min_version: int | None = None


class TopicSchema(Struct, frozen=True, kw_only=True):
    """What a topic asks of its messages."""

    subject: str
    policy: ValidationPolicy = "warn"
    validates_payloads: bool = False


def read_validation_policy(text: str) -> ValidationPolicy:
    """Return the policy of that name, in any case; refuse what is none."""
    for policy in get_args(ValidationPolicy):
        if policy == text.strip().lower():
            found: ValidationPolicy = policy
            return found
    raise InvalidRequest(f"validation policy {text[:100]!r} is none of none, warn, enforce")


def check_reference(reference: SchemaReference) -> SchemaReference:
    """Return the reference if it is one; refuse it otherwise."""
    if reference.version is not None and reference.min_version is not None:
        raise InvalidRequest(
            f"a reference to {reference.subject} pins a version or names the lowest, not both"
        )
    for number in (reference.version, reference.min_version):
        if number is not None and not 1 <= number <= VERSION_MAX:
            raise InvalidRequest(f"schema versions count from 1; {number} is none")
    return reference
