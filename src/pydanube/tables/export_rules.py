"""How a topic goes into its table: the rules of one export. Pure."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from pydanube.spark.source.planning import Limits

OnBadMessage = Literal["dlq", "fail", "skip"]
"""What becomes of a message that cannot be decoded."""


class ExportRules(Struct, frozen=True, kw_only=True):
    """How one topic goes into its table."""

    starts: Mapping[str, int] = {}
    """Where physical topics enter, if not at their beginning."""
    on_bad_message: OnBadMessage = "dlq"
    upsert_key: tuple[str, ...] = ()
    """Columns of the key; none: rows are appended."""
    limits: Limits = Limits(bytes=128 * 1024 * 1024)
    """What one commit holds, about."""
