"""Watches what brokers do as owners, from inside: one owner in an epoch, one at a time, none
without a lease."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from pydanube.broker.servicers.discovery import DiscoveryServicer
from pydanube.cluster.membership import Membership
from pydanube.errors import DanubeError
from pydanube.metadata.commands import Command, GrantLease, RenewLease
from pydanube.metadata.state_machine import Applied, StateMachine
from pydanube.model.batch import Batch
from pydanube.storage.topic_log import Done, TopicLog
from pydanube.subscriptions.subscription import Subscription
from pydanube.topics.manager import TopicManager
from pydanube.topics.topic import Topic
from pydanube.wire.calls import Call
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.support.checkers import Violation


class Owners:
    """Takes note of all that only the owner of a topic may do, and under which epoch it is done.

    That is: to acknowledge a message, on best-effort topics as well, to take a consumer's ack or
    nack for good, and to say that the topic is here. In one epoch only one broker does any of it.
    Once a broker has opened a topic in a later epoch, nobody does in an earlier one. And nobody
    does without a lease: it has run out, by a clock that is right, since the metadata took the
    last renewal in, or the metadata has ended it. Those moments are the world's knowledge, as the
    first replica of the metadata gets there: no broker is asked what it believes.
    """

    def __init__(self, name_of: Callable[[object], str], opened: Callable[[], None]) -> None:
        self._name_of = name_of
        self._opened = opened
        """Called whenever a topic begins anew, with nothing delivered yet."""
        self._owners: dict[tuple[int, int], str] = {}
        self._latest: dict[int, int] = {}
        """By topic, the latest epoch in which it was opened."""
        self._members: dict[Any, Membership] = {}
        """By the clock of the process."""
        self._topic_of: WeakKeyDictionary[Subscription, Topic] = WeakKeyDictionary()
        self._over: dict[int, float] = {}
        """When each lease runs out, or ended before."""
        self._renewals: set[tuple[int, int]] = set()
        """Lease and instant of each: a replica that starts again applies them once more."""
        self.acknowledged = 0
        self.done: dict[str, int] = {}
        """How often each deed was seen."""
        self.violations: list[Violation] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on for as long as this is open."""
        with ExitStack() as stack:
            for place, name, watch in (
                (Membership, "__init__", self._watch_members),
                (StateMachine, "apply", self._watch_leases),
                (StateMachine, "_end_leases", self._watch_ends_of_leases),
                (TopicManager, "admit", self._watch_openings),
                (TopicLog, "settle", self._watch_log),
                (Topic, "_offer_batch", self._watch_offers),
                (Subscription, "_answer_when_durable", self._watch_settling),
                (Topic, "add_subscription", self._watch_subscriptions),
                (DiscoveryServicer, "topic_lookup", self._watch_look_ups),
            ):
                stack.enter_context(_replaced(place, name, watch))
            yield

    # What there is.

    def _watch_members(self, plain: Any) -> Any:
        def init(member: Membership, *given: Any, **named: Any) -> None:
            plain(member, *given, **named)
            self._members[member._clock] = member

        return init

    def _watch_leases(self, plain: Any) -> Any:
        def apply(machine: StateMachine, command: Command) -> Any:
            result, changes = plain(machine, command)
            if isinstance(command, GrantLease):
                self._renewed(result.number, command.now_ms, command.ttl_ms)
            elif isinstance(command, RenewLease) and isinstance(result, Applied):
                ttl_ms = machine._leases[command.lease].ttl_ms
                self._renewed(command.lease, command.now_ms, ttl_ms)
            return result, changes

        return apply

    def _renewed(self, lease: int, now_ms: int, ttl_ms: int) -> None:
        if (lease, now_ms) not in self._renewals:
            self._renewals.add((lease, now_ms))
            self._over[lease] = _now() + ttl_ms / 1000

    def _watch_ends_of_leases(self, plain: Any) -> Any:
        def end_leases(machine: StateMachine, numbers: Sequence[int]) -> Any:
            for number in numbers:
                self._over[number] = min(self._over[number], _now())
            return plain(machine, numbers)

        return end_leases

    def _watch_openings(self, plain: Any) -> Any:
        def admit(topics: TopicManager, topic: Topic) -> Topic:
            known, epoch = self._latest.get(topic.record.id, 0), topic._context.epoch
            self._latest[topic.record.id] = max(known, epoch)
            self._opened()
            return plain(topics, topic)  # type: ignore[no-any-return]

        return admit

    # What is done.

    def _watch_log(self, plain: Any) -> Any:
        def settle(log: TopicLog) -> None:
            before = log.durable_end
            plain(log)
            if log.durable_end > before:
                self.acknowledged += log.durable_end - before
                what = f"acknowledges offsets {before} to {log.durable_end}"
                self._judge(log.topic_id, log._index.epoch, log._clock, what)

        return settle

    def _watch_offers(self, plain: Any) -> Any:
        def offer_batch(topic: Topic, batch: Batch) -> None:
            self._judge_topic(topic, f"accepts {batch.count} messages")
            plain(topic, batch)

        return offer_batch

    def _watch_subscriptions(self, plain: Any) -> Any:
        def add_subscription(topic: Topic, *given: Any, **named: Any) -> Subscription:
            subscription: Subscription = plain(topic, *given, **named)
            self._topic_of[subscription] = topic
            return subscription

        return add_subscription

    def _watch_settling(self, plain: Any) -> Any:
        def answer_when_durable(subscription: Subscription, done: Done) -> None:
            topic = self._topic_of[subscription]

            def judged(error: DanubeError | None) -> None:
                if error is None and topic.is_reliable:
                    self._judge_topic(topic, "settles what a consumer answered")
                done(error)

            plain(subscription, judged)

        return answer_when_durable

    def _watch_look_ups(self, plain: Any) -> Any:
        async def topic_lookup(
            servicer: DiscoveryServicer, request: api.TopicLookupRequest, call: Call
        ) -> api.TopicLookupResponse:
            topic = servicer._topics.find(request.topic)
            reply: api.TopicLookupResponse = await plain(servicer, request, call)
            if topic is not None and reply.response_type == api.TopicLookupResponse.Connect:
                self._judge_topic(topic, "answers a look-up")
            return reply

        return topic_lookup

    # The laws.

    def _judge_topic(self, topic: Topic, what: str) -> None:
        context = topic._context
        self._judge(topic.record.id, context.epoch, context.clock, what)

    def _judge(self, topic: int, epoch: int, clock: Any, what: str) -> None:
        if not clock.alive:
            return  # Nobody hears it.
        verb = what.partition(" ")[0]
        self.done[verb] = self.done.get(verb, 0) + 1
        broker = self._name_of(clock)
        deed = f"at {_now():.4f} {broker} {what} of topic {topic} in epoch {epoch}"
        known = self._owners.setdefault((topic, epoch), broker)
        if known != broker:
            self._complain("two owners", f"{deed}, which is the epoch of {known}")
        latest = self._latest.get(topic, epoch)
        if epoch < latest:
            self._complain("deposed owner", f"{deed}, though it was opened in epoch {latest}")
        self._latest[topic] = max(epoch, latest)
        lease = self._members[clock].lease
        over = self._over[lease] if lease is not None else 0.0
        if over < _now():
            self._complain("lapsed lease", f"{deed}, though its lease ended at {over:.4f}")

    def _complain(self, law: str, text: str) -> None:
        self.violations.append(Violation(law, text))


def _now() -> float:
    return asyncio.get_running_loop().time()


@contextmanager
def _replaced(place: Any, name: str, watch: Callable[[Any], Any]) -> Iterator[None]:
    plain = getattr(place, name)
    setattr(place, name, watch(plain))
    try:
        yield
    finally:
        setattr(place, name, plain)
