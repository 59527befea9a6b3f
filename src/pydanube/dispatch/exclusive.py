"""One consumer gets everything."""

from typing_extensions import override

from pydanube.dispatch.ordered import OrderedDispatcher


class ExclusiveDispatcher(OrderedDispatcher):
    """Delivers to the consumer that joined first, in offset order.

    It keeps its place while it is away: nothing is delivered until it is back, or until it is
    removed and another one takes its place.
    """

    @override
    def _spread(self, start: int, end: int, attempt: int) -> int:
        for active in self._members.values():
            stop = min(end, start + active.credit)
            if start < stop:
                self._deliver(active, start, stop, attempt)
            return stop
        return start
