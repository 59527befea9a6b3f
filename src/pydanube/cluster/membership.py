"""Keeps a broker in the cluster: its registration, bound to a lease, and what losing it means."""

from collections.abc import Callable

from msgspec import Struct

from pydanube.cluster.records import BrokerRecord, encode
from pydanube.errors import DanubeError, NotFound, Unavailable
from pydanube.metadata import keys
from pydanube.metadata.store import MetadataStore, Put
from pydanube.model.ids import BrokerId
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope

_RENEWALS = 3
"""So often a lease is renewed within its time."""
_RETRY_SECONDS = 0.1
_REGISTRATIONS = 5
"""So often a registration is tried whose lease ended on the way."""

_log = get_logger(__name__)


class LeaseTerms(Struct, frozen=True, kw_only=True):
    """How long a broker may be silent."""

    ttl_ms: int = 1_500

    @property
    def trusted_ms(self) -> int:
        """How long after a renewal was sent the broker itself relies on it.

        Less than the lease's time, so that it stops before anybody else may begin: clocks run at
        slightly different speeds, and an answer needs time to leave.
        """
        return self.ttl_ms * 3 // 4


class Membership:
    """One broker's place among the others. It is a member from `join` until `leave`."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        tasks: TaskScope,
        broker: BrokerId,
        record: BrokerRecord,
        terms: LeaseTerms,
    ) -> None:
        self.broker = broker
        self.terms = terms
        self.on_change: Callable[[], None] = lambda: None
        """Called when the lease was lost, and when there is one again."""
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._record = record
        self._lease: int | None = None
        self._renewed_ms: int | None = None
        """When the last renewal that succeeded was sent."""
        self._lapse_told = False
        self._left = False

    @property
    def lease(self) -> int | None:
        """The lease to which other keys of this broker may be bound."""
        return self._lease

    @property
    def is_certain(self) -> bool:
        """Whether nobody else can have been given this broker's topics."""
        renewed_ms = self._renewed_ms
        if renewed_ms is None:
            return False
        return self._clock.monotonic_ms() - renewed_ms <= self.terms.trusted_ms

    def guard(self) -> DanubeError | None:
        """Return why nothing may be acknowledged, None while this broker is certain of its place.

        Asked before every answer: it must see a pause of the whole process, too.
        """
        if self.is_certain:
            return None
        if not self._lapse_told:
            self._lapse_told = True
            _log.warning("not heard by the cluster in time; nothing is acknowledged until it is")
            self.on_change()
        return Unavailable("this broker is cut off from its cluster; look the topic up again")

    async def join(self) -> None:
        """Register; Unavailable if the cluster does not take it."""
        await self._register()
        self._tasks.start(self._keep_alive(), "keep the registration alive")

    async def leave(self) -> None:
        """Deregister at once, so that nobody waits for the lease to end."""
        self._left = True
        self._renewed_ms = None
        if self._lease is not None:
            await self._store.revoke_lease(self._lease)

    async def _register(self) -> None:
        for _ in range(_REGISTRATIONS):
            sent_ms = self._clock.monotonic_ms()
            lease = await self._store.grant_lease(self.terms.ttl_ms)
            put = Put(keys.registration(self.broker), encode(self._record), lease)
            try:
                await self._store.transact([], [put])
            except NotFound:
                continue  # The lease had ended before the registration got through.
            self._lease = lease
            self._renewed(sent_ms)
            return
        raise Unavailable(
            f"leases of {self.terms.ttl_ms} ms end before this broker is registered: see to the "
            "network and the disks of the metadata, or raise cluster.lease_ms"
        )

    def _renewed(self, sent_ms: int) -> None:
        self._renewed_ms = sent_ms
        if self._lapse_told and self.is_certain:
            self._lapse_told = False
            _log.info("heard by the cluster again")
            self.on_change()

    async def _keep_alive(self) -> None:
        pause = self.terms.ttl_ms / _RENEWALS / 1000
        while not self._left:
            await self._clock.sleep(pause)
            try:
                await self._renew()
            except DanubeError as error:
                _log.warning("registration not renewed; tried again soon", cause=str(error))
                await self._clock.sleep(_RETRY_SECONDS)

    async def _renew(self) -> None:
        if self._left or self._lease is None:
            return
        sent_ms = self._clock.monotonic_ms()
        try:
            await self._store.renew_lease(self._lease)
        except NotFound:
            _log.warning("the registration has expired; registering anew", broker=self.broker)
            await self._register()
        else:
            self._renewed(sent_ms)
