"""One consumer gets everything, and the next one stands in for it."""

from typing_extensions import override

from pydanube.dispatch.exclusive import ExclusiveDispatcher
from pydanube.model.ids import ConsumerId


class FailoverDispatcher(ExclusiveDispatcher):
    """Delivers to the connected consumer that has been here longest, in offset order.

    One that leaves loses its place, and queues at the end when it returns; the next one gets all
    that was unacked, then what follows. One that takes over its own name keeps its place.
    """

    @override
    def _leave(self, consumer: ConsumerId) -> None:
        super()._leave(consumer)
        self._members.pop(consumer, None)
