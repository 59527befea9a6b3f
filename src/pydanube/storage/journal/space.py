"""How much disk the journal may take while nothing of it can be deleted."""

from pydanube.errors import Overloaded
from pydanube.storage.journal.housekeeping import Housekeeping

_FILES_MIN = 2


class JournalSpace:
    """Refuses messages when the segment store falls so far behind that the journal has no room.

    Acks are not refused: they are small, and without them nothing would ever get better.
    """

    def __init__(self, housekeeping: Housekeeping, bytes_max: int, file_bytes_max: int) -> None:
        self._housekeeping = housekeeping
        # The file being written never goes, and the one before it goes only some time after.
        self._bytes_max = max(bytes_max, _FILES_MIN * file_bytes_max)

    def check(self) -> None:
        """Raise Overloaded if there is no room for another batch."""
        needed = self._housekeeping.needed_bytes
        if needed > self._bytes_max:
            raise Overloaded(
                f"{needed} bytes of the journal are not in segments yet, the limit is "
                f"{self._bytes_max} (storage.local_retention.size_mb); see to the segment store, "
                "and to topics that cannot be exported (/readyz names them), then repeat"
            )

    @property
    def is_short(self) -> bool:
        """Whether exports should make room before anything else."""
        return self._housekeeping.needed_bytes > self._bytes_max // 2

    def look_around(self) -> None:
        """Delete what need not be kept any more."""
        self._housekeeping.look_around()
