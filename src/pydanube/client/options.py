"""How a producer's messages leave. Pure."""

from typing import Literal

from msgspec import Struct

from pydanube.errors import InvalidRequest

SEND_SECONDS_MAX = 30.0
BATCH_MESSAGES_MAX = 1_000
"""What travels together at most, unless told otherwise."""
BATCH_BYTES_MAX = 1024 * 1024

Compression = Literal["none", "lz4", "zstd"]
"""How batches are packed, on the wire and in the journal."""


class SendOptions(Struct, frozen=True, kw_only=True):
    """How messages leave."""

    seconds_max: float = SEND_SECONDS_MAX
    linger_ms: float = 0
    batch_messages_max: int = BATCH_MESSAGES_MAX
    batch_bytes_max: int = BATCH_BYTES_MAX
    compression: Compression = "none"

    def check(self) -> None:
        """Refuse what makes no sense."""
        if self.seconds_max <= 0:
            raise InvalidRequest(f"send_seconds_max must be positive, not {self.seconds_max}")
        if not 0 <= self.linger_ms <= self.seconds_max * 500:
            raise InvalidRequest(
                f"linger_ms must be 0 to {self.seconds_max * 500:g}, half of send_seconds_max, not "
                f"{self.linger_ms}"
            )
        if not 1 <= self.batch_messages_max <= 10 * BATCH_MESSAGES_MAX:
            raise InvalidRequest(
                f"batch_messages_max must be 1 to {10 * BATCH_MESSAGES_MAX}, not "
                f"{self.batch_messages_max}"
            )
        if not 1 <= self.batch_bytes_max <= 4 * BATCH_BYTES_MAX:
            raise InvalidRequest(
                f"batch_bytes_max must be 1 to {4 * BATCH_BYTES_MAX}, not {self.batch_bytes_max}"
            )
        if self.compression not in ("none", "lz4", "zstd"):
            raise InvalidRequest(f"compression must be none, lz4 or zstd, not {self.compression!r}")
