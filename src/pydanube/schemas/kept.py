"""A bounded memory of what is costly to make."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Kept(Generic[_Key, _Value]):
    """Keeps the values used last.

    Threads may share it: each step on the dictionary is atomic, and two threads that miss at once
    make the same value twice.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._values: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Return the value of a key, made now if it is not kept."""
        try:
            value = self._values[key]
            self._values.move_to_end(key)
        except KeyError:
            value = make()
            self._values[key] = value
            if len(self._values) > self._count_max:
                self._forget_oldest()
        return value

    def __len__(self) -> int:
        return len(self._values)

    def _forget_oldest(self) -> None:
        try:
            self._values.popitem(last=False)
        except KeyError:  # Another thread was faster.
            return
