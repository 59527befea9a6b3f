"""How far a subscription has come."""

from pydanube.model.ranges import RangeSet


class Settled:
    """The cursor, and what is settled above it. The cursor never passes an unsettled offset."""

    def __init__(self, cursor: int, above: RangeSet) -> None:
        self.cursor = above.end_of_run(cursor)
        self._above = above
        self._above.remove(0, self.cursor)
        self._has_holes = len(above) > 0

    def add(self, start: int, end: int) -> None:
        """Settle a range that was not settled; the cursor moves over a run without holes."""
        assert start >= self.cursor, "an offset was settled twice"
        if start > self.cursor:
            self._above.add(start, end)
            self._has_holes = True
        elif self._has_holes:
            self.cursor = self._above.end_of_run(end)
            self._above.remove(start, self.cursor)
            self._has_holes = len(self._above) > 0
        else:
            self.cursor = end
