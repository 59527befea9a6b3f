"""The pump: what consumers may be handed, and how a subscription is moved."""

import asyncio
from typing import Any

import pytest

from pydanube.dispatch.events import DispatchSettings
from pydanube.dispatch.factory import create_dispatcher
from pydanube.errors import DanubeError
from pydanube.model.batch import Batch
from pydanube.model.ids import ConsumerId, Offset, SubscriptionId
from pydanube.model.message import Message
from pydanube.model.policies import FailurePolicy, SubscriptionType
from pydanube.model.progress import Progress, ProgressChange
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.topic_log import Piece
from pydanube.subscriptions import outbox
from pydanube.subscriptions.consumer import Consumer
from pydanube.subscriptions.cursor import Cursor, Done
from pydanube.subscriptions.subscription import Subscription, SubscriptionContext

KINDS: list[SubscriptionType] = ["Exclusive", "Shared", "Failover", "KeyShared"]


class Counts:
    """Remembers what was observed."""

    poison_policy = ""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def observed(self, what: str, count: int) -> None:
        self.seen[what] = self.seen.get(what, 0) + count


class Source:
    """A topic of a hundred messages, each with a key of its own."""

    durable_end = Offset(100)

    def read_cached(self, start: Offset, end: Offset) -> list[Piece]:
        batch = batch_of(end - start)
        return [Piece(start, batch, 0, batch.count)]

    async def read(self, start: Offset, end: Offset, *, bytes_max: int = 1) -> list[Piece]:
        return self.read_cached(start, end)


class Journal:
    """Makes every change durable at once."""

    def __init__(self) -> None:
        self.changes: list[ProgressChange] = []

    def append_progress(self, _: SubscriptionId, change: ProgressChange, done: Done) -> None:
        self.changes.append(change)
        done(None)


def batch_of(count: int, payload: bytes = b"x") -> Batch:
    return Batch.gather(
        [
            Message(payload=payload, publish_time_ms=1, producer_name="p", routing_key=f"k{row}")
            for row in range(count)
        ]
    )


def subscription(
    kind: SubscriptionType = "Shared", *, reliable: bool, journal: Journal | None = None
) -> tuple[Subscription, Counts]:
    settings = DispatchSettings(window=1_000, policy=FailurePolicy())
    counts = Counts()
    clock = SystemClock()
    cursor = Cursor(SubscriptionId(1), journal or Journal(), clock) if reliable else None

    def no_dead_letters(*_: Any) -> None:
        raise AssertionError("nothing fails here")

    context = SubscriptionContext(
        topic="/default/orders",
        clock=clock,
        tasks=TaskScope(lambda name, error: None),
        source=Source() if reliable else None,
        cursor=cursor,
        observer=counts,
        store_dead_letter=no_dead_letters,
    )
    dispatcher = create_dispatcher(kind, reliable, Progress(Offset(0)), settings, Offset(0))
    return Subscription(SubscriptionId(1), "s", kind, dispatcher, context), counts


def join(target: Subscription, credit: int) -> Consumer:
    member = Consumer(ConsumerId(1), "c", ())
    member.credit = credit
    target.join(member, "peer")
    return member


@pytest.mark.parametrize("kind", KINDS)
async def test_a_consumer_is_handed_no_more_than_its_credit(kind: SubscriptionType) -> None:
    target, _ = subscription(kind, reliable=True)
    member = join(target, 7)
    stream = target.open_stream(member, "peer")
    assert member.outbox.message_count == 7
    target.drained(stream, 5)
    assert member.outbox.message_count == 12
    target.close(None)


async def test_a_best_effort_message_without_room_for_its_bytes_costs_no_credit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "_PINNED_BYTES_MAX", 4_000)
    target, counts = subscription(reliable=False)
    member = join(target, 3)
    large, small = batch_of(1, bytes(10_000)), batch_of(1)
    for offset in range(20):
        target.offer(Piece(Offset(offset), large, 0, 1))
    assert counts.seen["discarded"] == 20
    for offset in range(20, 24):
        target.offer(Piece(Offset(offset), small, 0, 1))
    assert member.outbox.message_count == 3
    target.close(None)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_advanced_subscription_skips_what_was_delivered_and_what_was_not(
    kind: SubscriptionType,
) -> None:
    journal = Journal()
    target, _ = subscription(kind, reliable=True, journal=journal)
    member = join(target, 10)
    answers: list[DanubeError | None] = []
    target.advance(Offset(50), answers.append)
    assert target.cursor == 50
    assert answers == []
    await asyncio.sleep(0)
    assert answers == [None]
    assert sum(end - start for each in journal.changes for start, end in each.settled) == 50
    stream = target.open_stream(member, "peer")
    target.drained(stream, 5)
    taken = [each for each in stream.take_nowait(1_000, 1 << 20) if each.start >= 10]
    assert (min(each.start for each in taken), sum(each.count for each in taken)) == (50, 5)
    target.advance(Offset(20), answers.append)
    assert target.cursor == 50
    assert answers == [None, None]
    target.close(None)
