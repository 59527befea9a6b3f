"""What a client's process is told, and what it has to carry it out."""

import asyncio
from typing import Literal

from msgspec import Struct

from tests.chaos.members import Member
from tests.chaos.publishers import Publisher

Verb = Literal["join", "leave", "repeat acks", "publish", "be quiet", "end"]


class Charge(Struct):
    """What a client is started with."""

    name: str
    urls: list[str]
    topics: list[str]
    history: str
    messages_a_second: float
    """Of each producer, about."""


class Order(Struct):
    """What to do now; without a topic or subscription it is meant for all of them."""

    number: int
    verb: Verb
    topic: str = ""
    subscriptions: list[str] = []


class Done(Struct):
    """The order is carried out, as far as it could be."""

    number: int


class Client:
    """Has members and publishers, and passes orders on to them."""

    def __init__(self, members: list[Member], publishers: list[Publisher]) -> None:
        self._members = members
        self._publishers = publishers
        self._publishing: list[asyncio.Task[None]] = []

    async def obey(self, order: Order) -> None:
        meant = [
            member
            for member in self._members
            if order.topic in ("", member.topic)
            and (not order.subscriptions or member.subscription in order.subscriptions)
        ]
        match order.verb:
            case "join":
                for member in meant:
                    member.join()
            case "leave":
                await asyncio.gather(*(member.leave() for member in meant))
            case "repeat acks":
                await asyncio.gather(*(member.repeat_acks() for member in meant))
            case "publish":
                self._publishing = [asyncio.create_task(each.run()) for each in self._publishers]
            case "be quiet" | "end":
                await self._be_quiet()

    async def _be_quiet(self) -> None:
        for task in self._publishing:
            task.cancel()
        await asyncio.gather(*self._publishing, return_exceptions=True)
