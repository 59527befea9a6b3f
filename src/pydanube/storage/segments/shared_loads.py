"""What was read from the segment store last, kept so that readers of one stretch share it."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from pydanube.runtime.tasks import TaskScope

_Value = TypeVar("_Value")


class SharedLoads(Generic[_Value]):
    """Keeps what was loaded last, up to so many bytes; what is asked for twice is loaded once.

    At most `loads_max` loads run at a time. One goes on when its first reader has left, for others
    may wait for it.
    """

    def __init__(
        self, tasks: TaskScope, *, bytes_max: int, loads_max: int, size_of: Callable[[_Value], int]
    ) -> None:
        self._tasks = tasks
        self._bytes_max = bytes_max
        self._size_of = size_of
        self._kept: OrderedDict[Hashable, _Value] = OrderedDict()
        self._loading: dict[Hashable, asyncio.Future[_Value]] = {}
        self._slots = asyncio.Semaphore(loads_max)
        self.bytes = 0

    async def get(self, key: Hashable, load: Callable[[], Awaitable[_Value]]) -> _Value:
        """Return what is kept under the key, or what `load` returns; failures are not kept."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.get_running_loop().create_future()
            self._tasks.start(self._load(key, load, loading), "segment read")
        return await asyncio.shield(loading)

    async def _load(
        self, key: Hashable, load: Callable[[], Awaitable[_Value]], outcome: asyncio.Future[_Value]
    ) -> None:
        try:
            async with self._slots:
                value = await load()
        except asyncio.CancelledError:
            outcome.cancel()
            raise
        except Exception as error:  # noqa: BLE001  Whoever waits is told, whatever it is.
            outcome.set_exception(error)
            outcome.exception()  # Perhaps nobody waits any more.
        else:
            self._keep(key, value)
            outcome.set_result(value)
        finally:
            del self._loading[key]

    def _keep(self, key: Hashable, value: _Value) -> None:
        self._kept[key] = value
        self.bytes += self._size_of(value)
        while self.bytes > self._bytes_max:
            _, forgotten = self._kept.popitem(last=False)
            self.bytes -= self._size_of(forgotten)
