"""How patient a node is, and how much it holds."""

from msgspec import Struct

KIB = 1024
MIB = 1024 * KIB


class RaftSettings(Struct, frozen=True, kw_only=True):
    """Times are counted in ticks; how long a tick is, is the driver's business."""

    heartbeat_ticks: int = 5
    election_ticks: int = 15
    """A follower stands for election after this many to twice as many ticks without a leader."""
    snapshot_ticks: int = 300
    """After so long without an answer a snapshot is taken for lost."""
    append_bytes_max: int = MIB
    """Per message; one entry always passes."""
    in_flight_messages_max: int = 64
    in_flight_bytes_max: int = 8 * MIB
    """Appends on their way to one follower."""
    uncommitted_bytes_max: int = 64 * MIB
    """Proposals that a leader holds without knowing them committed."""
    apply_bytes_max: int = 4 * MIB
    """Committed entries handed over at a time; one always passes."""
    reads_max: int = 10_000
    messages_max: int = 10_000
    """Messages that wait to be sent; any more are lost, as a network might lose them."""
    promotion_lag_max: int = 1_000
    """A learner that misses more entries than this is not promoted."""
