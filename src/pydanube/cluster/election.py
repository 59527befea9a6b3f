"""Chooses a leader through a key that is bound to a lease: for stores that have no leader."""

from contextlib import suppress

from pydanube.cluster.membership import LeaseTerms
from pydanube.errors import Conflict, DanubeError, NotFound
from pydanube.metadata import keys
from pydanube.metadata.store import Expect, MetadataStore, Put
from pydanube.model.ids import BrokerId
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock

_LOOKS = 6
"""So often within a lease's time it is renewed, and the key looked at."""

_log = get_logger(__name__)


class KeyElection:
    """Leads while it holds the key and its lease is fresh.

    A broker that was away leads no more by its own clock before its lease has ended for others.
    """

    def __init__(
        self, store: MetadataStore, clock: Clock, broker: BrokerId, terms: LeaseTerms
    ) -> None:
        self._store = store
        self._clock = clock
        self._me = b"%d" % broker
        self._terms = terms
        self._lease: int | None = None
        self._renewed_ms = 0
        self._revision = 0
        self._troubled = False

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads, as far as it knows."""
        entry = self._store.get(keys.CLUSTER_ELECTION)
        fresh = self._clock.monotonic_ms() - self._renewed_ms < self._terms.trusted_ms
        return fresh and entry is not None and entry.revision == self._revision

    async def run(self) -> None:
        """Stand for election until cancelled."""
        while True:
            try:
                await self._stand()
                self._troubled = False
            except DanubeError as error:
                if not self._troubled:
                    _log.warning("cannot stand for election", cause=str(error))
                self._troubled = True
            await self._clock.sleep(self._terms.ttl_ms / 1000 / _LOOKS)

    async def _stand(self) -> None:
        began_ms = self._clock.monotonic_ms()
        if self._lease is not None:
            try:
                await self._store.renew_lease(self._lease)
            except NotFound:
                self._lease = None
        if self._lease is None:
            self._lease = await self._store.grant_lease(self._terms.ttl_ms)
        self._renewed_ms = began_ms
        if self._store.get(keys.CLUSTER_ELECTION) is None:
            put = Put(keys.CLUSTER_ELECTION, self._me, self._lease)
            with suppress(Conflict):
                self._revision = await self._store.transact(
                    [Expect(keys.CLUSTER_ELECTION, 0)], [put]
                )

    async def resign(self) -> None:
        """Let another broker lead at once; `run` has ended."""
        lease, self._lease = self._lease, None
        if lease is not None:
            with suppress(DanubeError):
                await self._store.revoke_lease(lease)
