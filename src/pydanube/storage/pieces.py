"""A slice of a stored batch: what readers of a topic get."""

from msgspec import Struct

from pydanube.model.batch import Batch
from pydanube.model.ids import Offset


class Piece(Struct, frozen=True):
    """Rows [first_row, end_row) of a stored batch whose first message has offset `base`."""

    base: Offset
    batch: Batch
    first_row: int
    end_row: int

    @property
    def start(self) -> Offset:
        """The offset of its first message."""
        return Offset(self.base + self.first_row)

    @property
    def end(self) -> Offset:
        """The offset behind its last message."""
        return Offset(self.base + self.end_row)

    @property
    def count(self) -> int:
        """How many messages there are."""
        return self.end_row - self.first_row

    @property
    def size_bytes(self) -> int:
        """About how many bytes of memory its messages hold."""
        return self.batch.size_bytes * self.count // self.batch.count

    @property
    def payload_bytes(self) -> int:
        """The bytes of its messages' payloads."""
        return self.batch.payload_bytes_of(self.first_row, self.end_row)

    def between(self, start: Offset, end: Offset) -> "Piece":
        """Return the part of it that lies in [start, end)."""
        return Piece(
            self.base,
            self.batch,
            max(start - self.base, self.first_row),
            min(end - self.base, self.end_row),
        )


def cut_piece(base: int, batch: Batch, start: int, end: int) -> Piece:
    """Return the part of a batch that lies in [start, end)."""
    return Piece(Offset(base), batch, max(start - base, 0), min(end - base, batch.count))
