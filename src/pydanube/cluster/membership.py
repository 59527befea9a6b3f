"""Keeps a broker in the cluster: its registration, bound to a lease, and what losing it means."""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from pydanube.cluster.records import BrokerRecord, encode
from pydanube.errors import DanubeError, NotFound, Unavailable
from pydanube.metadata import keys
from pydanube.metadata.store import MetadataStore, Put
from pydanube.model.ids import BrokerId
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock, Timer
from pydanube.runtime.tasks import TaskScope

RENEWALS = 3
"""So often a lease is renewed within its time."""
_RETRIES = 15
"""So often within its time a renewal is tried that fails."""
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

    @property
    def patience_ms(self) -> int:
        """How long after a renewal was sent the broker waits for another one to succeed.

        It acknowledges nothing meanwhile. The lease may be alive for longer than its time while
        the metadata have no leader; if it is, nobody else has been given anything.
        """
        return self.ttl_ms * 2


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
        self._listeners: list[Callable[[], None]] = []
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._record = record
        self._lease: int | None = None
        self._renewed_ms: int | None = None
        """When the last renewal that succeeded was sent."""
        self._lapse_told = False
        self._patience: Timer | None = None
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

    @property
    def _may_be_renewed(self) -> bool:
        """Whether the lease can be alive: then what this broker serves is still its own."""
        renewed_ms = self._renewed_ms
        if renewed_ms is None:
            return False
        return self._clock.monotonic_ms() - renewed_ms <= self.terms.patience_ms

    def tells(self, listener: Callable[[], None]) -> None:
        """Call that one when the lease is in doubt, when it is lost, and when there is one."""
        self._listeners.append(listener)

    def guard(self) -> DanubeError | Literal["wait"] | None:
        """Return why nothing may be acknowledged, None while this broker is certain of its place.

        Asked before every answer: it must see a pause of the whole process, too. "wait" while the
        next renewal decides; listeners are told when it has.
        """
        if self.is_certain:
            return None
        if not self._lapse_told:
            self._lapse_told = True
            _log.warning("lease in doubt; acknowledging nothing until the cluster answers")
            # Not at once: whoever asks is in the middle of something.
            self._patience = self._clock.call_later(0, self._doubt)
        if self._may_be_renewed:
            return "wait"
        return Unavailable("this broker is cut off from its cluster; look the topic up again")

    def claim(self) -> "Claim":
        """Return what guards a topic that is opened now."""
        return Claim(self)

    def _doubt(self) -> None:
        self._tell()
        if self._lapse_told and self._renewed_ms is not None and self._may_be_renewed:
            left_ms = self._renewed_ms + self.terms.patience_ms - self._clock.monotonic_ms()
            self._patience = self._clock.call_later((left_ms + 1) / 1000, self._doubt)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    async def join(self) -> None:
        """Register; Unavailable if the cluster does not take it."""
        await self._register()
        self._tasks.start(self._keep_alive(), "keep the registration alive")

    async def leave(self) -> None:
        """Deregister at once, so that nobody waits for the lease to end."""
        self._left = True
        self._end_patience()
        self._renewed_ms = None
        if self._lease is not None:
            await self._store.revoke_lease(self._lease)

    def resign(self) -> None:
        """Be a member no more, for all that this broker itself says; `leave` tells the others."""
        self._left = True
        self._lost()

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
            f"leases of {self.terms.ttl_ms} ms end before this broker is registered: "
            "check the network and the disks of the metadata, or raise cluster.lease_ms"
        )

    def _renewed(self, sent_ms: int) -> None:
        self._renewed_ms = sent_ms
        if not self._lapse_told:
            return
        self._end_patience()
        if self.is_certain:
            self._lapse_told = False
            _log.info("lease renewed; acknowledging again")
            self._tell()
        else:
            self._doubt()

    def _lost(self) -> None:
        """Take in that others may have been given this broker's topics."""
        self._lapse_told = True
        self._end_patience()
        self._renewed_ms = None
        self._tell()

    async def _keep_alive(self) -> None:
        ttl_seconds = self.terms.ttl_ms / 1000
        usual = pause = ttl_seconds / RENEWALS
        while not self._left:
            await self._clock.sleep(pause)
            try:
                await self._renew()
                pause = usual
            except DanubeError as error:
                if pause == usual:
                    _log.warning("lease not renewed; trying again", cause=str(error))
                pause = ttl_seconds / _RETRIES

    async def _renew(self) -> None:
        if self._left or self._lease is None:
            return
        sent_ms = self._clock.monotonic_ms()
        try:
            await self._store.renew_lease(self._lease)
        except NotFound:
            if self._left:
                return
            _log.warning("the registration has expired; registering anew", broker=self.broker)
            self._lost()
            await self._register()
        else:
            if not self._left:  # What was asked before this broker left makes it no member again.
                self._renewed(sent_ms)


class Claim:
    """One broker's right to a topic: it lasts as long as the lease under which it was opened.

    A later lease makes nothing certain that was served under an earlier one, for the topic may
    have been somebody else's between them. What was refused once is refused for ever.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._lease = membership.lease
        self._refusal: DanubeError | None = None

    @property
    def is_over(self) -> bool:
        """Whether the topic has to be let go, whoever has it by now."""
        return isinstance(self(), DanubeError)

    def __call__(self) -> DanubeError | Literal["wait"] | None:
        """Return why nothing may be acknowledged; see `Membership.guard`."""
        if self._refusal is not None:
            return self._refusal
        verdict = self._membership.guard()
        if self._membership.lease != self._lease:
            verdict = Unavailable(
                "this broker was cut off from its cluster; look the topic up again"
            )
        if isinstance(verdict, DanubeError):
            self._refusal = verdict
        return verdict
