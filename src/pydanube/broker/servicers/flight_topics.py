"""The topics that callers of Flight mean, whichever brokers serve them, and asking about them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from pydanube.broker.servicers.flight_parts import FlightParts
from pydanube.broker.servicers.flight_questions import (
    AskCursor,
    AskFrontier,
    AskJoin,
    AskProperty,
    Question,
)
from pydanube.errors import DanubeError, InvalidRequest, Unavailable
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope
from pydanube.topics.catalog import TopicRecord
from pydanube.topics.manager import TopicManager
from pydanube.topics.patterns import bases_matching

CHOSEN_MAX = 10_000
ASK_SECONDS = 5.0
"""How long topics may change hands before whoever asks about them is told to come again."""
JOIN_SECONDS = 120.0
"""Joined segments are read and checked before they count."""
_PAUSE_SECONDS = 0.05

_Answer = TypeVar("_Answer", bound=Struct)


class Told(Struct, Generic[_Answer], frozen=True):
    """An answer, and the Flight location of the broker that gave it."""

    answer: _Answer
    location: str


class Peer(Struct, frozen=True):
    """Another broker that lives."""

    broker: int
    address: str
    """Where other brokers ask it, host:port."""
    location: str
    """Where callers of Flight find it."""


class Peers(Protocol):
    """The other brokers of a cluster."""

    def owner_of(self, topic: str) -> Peer | None:
        """Return the other broker that serves a topic; None if there is none that lives."""

    async def ask(self, peer: Peer, question: Question, seconds_max: float) -> bytes:
        """Return what it answers, by topic, as msgpack; raise the error that it refused with."""


class FlightTopics:
    """Knows all topics by name, and asks each topic's broker. A broker alone asks itself."""

    def __init__(
        self,
        topics: TopicManager,
        parts: FlightParts,
        clock: Clock,
        location: str,
        peers: Peers | None = None,
    ) -> None:
        self._topics = topics
        self._parts = parts
        self._clock = clock
        self._location = location
        self._peers = peers

    # Names.

    def known(self) -> Iterator[tuple[str, TopicRecord]]:
        """Return every physical topic there is."""
        return self._topics.known()

    def physical(self, name: str) -> list[str]:
        """Return that topic, or the partitions of that base; NotFound if there are none."""
        names = self._topics.partitions(name)
        return names or [self._topics.get(name).name]

    def chosen(self, names: Sequence[str], pattern: str | None) -> list[str]:
        """Return the physical topics that names or a pattern choose, each once.

        A named topic that is missing is refused; a pattern chooses among those that keep messages,
        perhaps none.
        """
        if bool(names) == (pattern is not None):
            raise InvalidRequest("give either topics by name, or a pattern over their names")
        if pattern is not None:
            return self._checked(self._matching(pattern))
        return self._checked(dict.fromkeys(each for name in names for each in self.physical(name)))

    def _matching(self, pattern: str) -> Mapping[str, None]:
        reliable = [name for name, record in self.known() if record.strategy == "Reliable"]
        there = set(reliable)
        names = (each for base in bases_matching(reliable, pattern) for each in self.physical(base))
        return dict.fromkeys(each for each in names if each in there)

    def _checked(self, names: Mapping[str, None]) -> list[str]:
        if len(names) > CHOSEN_MAX:
            raise InvalidRequest(
                f"the request selects {len(names)} topics and partitions; the maximum is "
                f"{CHOSEN_MAX}"
            )
        return list(names)

    # Places.

    def place_of(self, name: str) -> tuple[str | None, bool]:
        """Return where a physical topic is served, None if nowhere now, and whether it is here."""
        if self._topics.find(name) is not None:
            return self._location, True
        owner = self._peers.owner_of(name) if self._peers is not None else None
        return (owner.location if owner is not None else None), False

    def are_spread(self, names: Sequence[str]) -> bool:
        """Tell whether more than this broker is asked about topics."""
        return any(self._topics.find(name) is None for name in names)

    # Asking.

    async def ask(self, question: Question, kind: type[_Answer]) -> dict[str, Told[_Answer]]:
        """Return what the brokers of all the topics answer, in the order of the question.

        Topics that change hands are waited for; whoever has answered is not asked again. Raises
        what a broker refused with, or Unavailable.
        """
        give_up = self._clock.monotonic_seconds() + ASK_SECONDS
        found = await self.ask_once(question, kind)
        while missing := [name for name in question.names if name not in found]:
            self._must_be_there(missing, give_up)
            await self._clock.sleep(_PAUSE_SECONDS)
            found |= await self.ask_once(_about(question, missing), kind)
        return {name: found[name] for name in question.names}

    async def ask_once(self, question: Question, kind: type[_Answer]) -> dict[str, Told[_Answer]]:
        """Return what brokers answer now; topics that nobody serves at the moment are left out."""
        here, elsewhere = self._shares(question.names)
        found: dict[str, Told[_Answer]] = {}
        if here:
            answers = await self._parts.answer(_about(question, here))
            for name, answer in answers.items():
                assert isinstance(answer, kind)
                found[name] = Told(answer, self._location)
        asked = await asyncio.gather(
            *(self._ask_peer(peer, _about(question, names)) for peer, names in elsewhere.items())
        )
        for peer, reply in zip(elsewhere, asked, strict=True):
            if reply is not None:
                told = msgspec.msgpack.decode(reply, type=dict[str, kind])  # type: ignore[valid-type]
                found |= {name: Told(answer, peer.location) for name, answer in told.items()}
        return found

    def _shares(self, names: Sequence[str]) -> tuple[list[str], dict[Peer, list[str]]]:
        here: list[str] = []
        elsewhere: dict[Peer, list[str]] = {}
        for name in names:
            if self._topics.find(name) is not None:
                here.append(name)
                continue
            owner = self._peers.owner_of(name) if self._peers is not None else None
            if owner is not None:
                elsewhere.setdefault(owner, []).append(name)
        return here, elsewhere

    async def _ask_peer(self, peer: Peer, question: Question) -> bytes | None:
        assert self._peers is not None
        seconds = ASK_SECONDS
        if isinstance(question, AskFrontier):
            seconds += question.wait_ms / 1000
        elif isinstance(question, AskJoin):
            seconds = JOIN_SECONDS
        try:
            return await self._peers.ask(peer, question, seconds)
        except Unavailable:
            if isinstance(question, AskCursor | AskProperty | AskJoin):
                raise  # It may be done or not; the caller decides.
            return None

    def _must_be_there(self, names: Sequence[str], give_up: float) -> None:
        for name in names:
            if not self._topics.partitions(name):
                self._topics.get(name)  # Raises what is to be said.
        if self._clock.monotonic_seconds() < give_up:
            return
        absence: DanubeError | None = None
        if self._topics.placement is not None:
            absence = self._topics.placement.absence(names[0])
        raise Unavailable(str(absence or f"topic {names[0]} is not served now; try again"))

    async def wait_for_more(self, question: AskFrontier) -> None:
        """Return when a topic of any broker has more than the caller knows, or time is up."""
        moved = asyncio.Event()

        async def wait(peer: Peer | None, names: list[str]) -> None:
            try:
                share = _about(question, names)
                await (self._parts.answer(share) if peer is None else self._ask_peer(peer, share))
            finally:
                moved.set()

        here, elsewhere = self._shares(question.names)
        scope = TaskScope(lambda name, error: moved.set())
        timer = self._clock.call_later(question.wait_ms / 1000, moved.set)
        try:
            if here:
                scope.start(wait(None, here), "frontiers of this broker")
            for peer, names in elsewhere.items():
                scope.start(wait(peer, names), f"frontiers of broker {peer.broker}")
            await moved.wait()
        finally:
            timer.cancel()
            await scope.close()


def _about(question: Question, names: list[str]) -> Question:
    return msgspec.structs.replace(question, names=names)
