"""Writes segments to the store under names that are used once, however often that must be tried."""

from collections.abc import Callable

from pydanube.errors import Corruption, DanubeError
from pydanube.observability.counts import SegmentMetrics
from pydanube.observability.logging import Logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import Randomness
from pydanube.storage.errors import StoreFailed, StoreProblem
from pydanube.storage.segments.backoff import Backoff
from pydanube.storage.segments.catalog import object_key
from pydanube.storage.segments.encoding import EncodedSegment, SegmentOrigin
from pydanube.storage.segments.object_store import ObjectStore, probe_store

_log = Logger(__name__)


PATIENCE = 5
"""Attempts after which to ask whether the store refuses one object alone."""


class Uploader:
    """Many uploads at a time, each until it succeeds or is not wanted any more.

    An attempt that failed may have succeeded, at once or later: it is repeated under the same
    name with the same bytes. What was seen to be whole is returned; what was not is discarded.
    An upload that fails again and again while the store works otherwise is given up.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        randomness: Randomness,
        metrics: SegmentMetrics,
    ) -> None:
        self.failure: StoreFailed | None = None
        """Why the store takes nothing at the moment."""
        self.in_flight: set[str] = set()
        """Names that are being written or may still enter the catalogue: nobody sweeps them up."""
        self._store = store
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics
        self._probed = False

    async def probe(self) -> None:
        """See whether the store keeps its word; raise StoreFailed or Corruption."""
        abilities = await probe_store(self._store, self._randomness)
        self._probed = True
        if not abilities.conditional_writes:
            _log.warning(
                "the segment store does not honour conditional writes; names are unique anyway",
                store=self._store.description,
            )

    async def upload(
        self,
        origin: SegmentOrigin,
        segment: EncodedSegment,
        wanted: Callable[[], bool],
        *,
        patience: int = PATIENCE,
    ) -> str | None:
        """Return the object's key, which stays in flight; None once it is not wanted.

        Waits as long as the store is out of order; raises StoreFailed when it refuses this object
        alone, of which nothing is in flight then.
        """
        started = self._clock.monotonic_seconds()
        backoff = Backoff(self._randomness)
        key = self._new_key(origin, segment)
        attempts = 0
        while wanted():
            attempts += 1
            try:
                size = await self._write(key, segment.data)
            except StoreFailed as error:
                self._failed(error)
                if attempts % patience == 0 and await self._works_otherwise():
                    await self.discard(key)
                    raise
                await self._clock.sleep(backoff.next_seconds())
                continue
            if size == len(segment.data):
                self.failure = None
                seconds = self._clock.monotonic_seconds() - started
                self._metrics.uploaded(self._store.provider, size, seconds)
                return key
            # The name is spent: whatever is there now, or comes late, is not to be relied on.
            self._failed(self._not_whole(key, size, len(segment.data)))
            await self.discard(key)
            key = self._new_key(origin, segment)
            await self._clock.sleep(backoff.next_seconds())
        await self.discard(key)
        return None

    async def _works_otherwise(self) -> bool:
        """Tell whether the store takes other objects; then it is not what is out of order."""
        try:
            await self.probe()
        except (StoreFailed, Corruption):
            return False
        self.failure = None
        return True

    async def discard(self, key: str) -> None:
        """Delete an object that is in no entry; should that fail, it is swept up another day."""
        try:
            await self._store.delete(key)
        except DanubeError as error:
            _log.info("an object was not deleted", key=key, cause=str(error))
        self.in_flight.discard(key)

    async def _write(self, key: str, data: bytes) -> int | None:
        if not self._probed:
            try:
                await self.probe()
            except Corruption as error:
                raise StoreFailed(
                    self._store.description, StoreProblem.OTHER, str(error)
                ) from error
        # A name that is taken was taken by an earlier attempt of this very upload.
        await self._store.put_if_absent(key, data)
        return await self._store.size(key)

    def _new_key(self, origin: SegmentOrigin, segment: EncodedSegment) -> str:
        token = self._randomness.below(1 << 64)
        key = object_key(origin, segment.base, segment.end, token)
        self.in_flight.add(key)
        return key

    def _failed(self, error: StoreFailed) -> None:
        self._metrics.upload_failed(self._store.provider, error.problem.name.lower())
        if self.failure is None or self.failure.problem is not error.problem:
            _log.warning("cannot write to the segment store; trying again", cause=str(error))
        self.failure = error

    def _not_whole(self, key: str, size: int | None, expected: int) -> StoreFailed:
        held = "nothing" if size is None else f"{size} bytes"
        return StoreFailed(
            self._store.description,
            StoreProblem.OTHER,
            f"it holds {held} under {key} after {expected} were written",
        )
