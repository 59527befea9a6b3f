"""What a subscription has done so far, and how that changes."""

from msgspec import Struct

from pydanube.model.ids import Offset


class Progress(Struct, frozen=True):
    """A subscription's whole state, as the journal gives it back."""

    cursor: Offset
    """The first offset that is not settled."""
    settled: tuple[tuple[int, int], ...] = ()
    """Ranges above the cursor, sorted and disjoint."""
    attempts: tuple[tuple[int, int, int], ...] = ()
    """(start, end, attempts) of unsettled messages that have been delivered before."""


class ProgressChange(Struct, frozen=True):
    """What happened since the last change: settled ranges, and counted attempts."""

    settled: tuple[tuple[int, int], ...] = ()
    attempts: tuple[tuple[int, int, int], ...] = ()
