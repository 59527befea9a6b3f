"""A person at the admin port: deletes topics and makes them again, unsubscribes, moves.

What must be done is repeated, at any broker that answers, until it is; the record of it lasts from
the first attempt to the last.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from pydanube import NotFound, connect
from pydanube.client.admin import AdminConnection
from pydanube.client.admin_answers import NewTopic
from pydanube.errors import AccessDenied, AlreadyExists, DanubeError, InvalidRequest, Unavailable
from pydanube.wire.grpcio.channel import GrpcioChannel
from tests.chaos.eras import DELETE_TOPIC, UNSUBSCRIBE
from tests.chaos.ground import Ground
from tests.chaos.history import Deed, Outcome, Scribe, now
from tests.chaos.schedule import STOCK, SUBSCRIPTIONS, Step, SubscriptionPlan, TopicPlan
from tests.chaos.workload import Workload

ATTEMPT_SECONDS_MAX = 15.0
DONE_SECONDS_MAX = 90.0
AGAIN_SECONDS = 0.3
UNCERTAIN_SECONDS = 5.0
"""So long an attempt that ended in silence may still be carried out."""
DRAINED = "drained"
NEW_MESSAGES_SECONDS = 2.0
"""How long the topic that was made again gets messages before old acks come."""

Work = Callable[[AdminConnection], Awaitable[None]]


class NotDone(Exception):
    """An operation did not succeed in its time."""


class Operator:
    """Carries out the deeds of one lane, one after the other."""

    def __init__(self, ground: Ground, workload: Workload, scribe: Scribe) -> None:
        self._ground = ground
        self._workload = workload
        self._scribe = scribe
        self._endpoints = itertools.cycle(broker.admin_url for broker in ground.brokers)

    async def carry_out(self, step: Step, topics: Sequence[TopicPlan]) -> None:
        topic = topics[step.topic]
        began, outcome = now(), "unknown"
        try:
            match step.kind:
                case "recreate":
                    await self._recreate(topic, unasked=step.unasked)
                case "unsubscribe":
                    await self._unsubscribe(topic, SUBSCRIPTIONS[step.subscription])
                case _:
                    await self._move(topic)
            outcome = "ok"
        except DanubeError:
            outcome = "failed"
        except NotDone as error:
            self._broken(topic.name, str(error))
        finally:
            self._write(began, outcome, step.kind, topic.name)

    async def create(self, topic: TopicPlan) -> None:
        """Make a topic with all its subscriptions, each at the first message."""

        async def make(admin: AdminConnection) -> None:
            with suppress(AlreadyExists):  # A producer may have been faster.
                await admin.create_topic(NewTopic(name=topic.name, dispatch="Reliable"))

        await self._until_done(f"create {topic.name}", make)
        if topic.replicas > 1:
            await self._until_done(
                f"set the replicas of {topic.name}",
                lambda admin: admin.set_replicas(topic.replicas, topic=topic.name),
            )
        for plan in SUBSCRIPTIONS:
            await self._subscribe(topic, plan)

    async def join_node(self, node_id: int, address: str) -> None:
        """Let a broker with an empty disk learn, and then vote."""

        async def add(admin: AdminConnection) -> None:
            change = await admin.add_node(node_id, address)
            if not change.success:
                raise DanubeError(change.message)

        async def promote(admin: AdminConnection) -> None:
            change = await admin.promote_node(node_id)
            if not change.success:
                raise DanubeError(change.message)

        await self._until_done(f"add node {node_id}", add)
        await self._until_done(f"promote node {node_id}", promote)

    async def remove_node(self, node_id: int) -> None:
        async def remove(admin: AdminConnection) -> None:
            change = await admin.remove_node(node_id)
            if not change.success:
                raise DanubeError(change.message)

        await self._until_done(f"remove node {node_id}", remove)

    async def activate_drained(self) -> list[str]:
        """Let brokers serve again that wait for an operator to have seen to their disks."""
        activated: list[str] = []

        async def activate(admin: AdminConnection) -> None:
            for broker in await admin.brokers():
                if broker.broker_status.startswith(DRAINED):  # Why follows, where there is one.
                    await admin.activate_broker(broker.broker_id, "the disk works again")
                    activated.append(broker.broker_addr)

        with suppress(TimeoutError, DanubeError):  # Whoever asks again soon needs no answer now.
            async with asyncio.timeout(ATTEMPT_SECONDS_MAX):
                await self._call(activate)
        return activated

    # Deeds.

    async def _recreate(self, topic: TopicPlan, *, unasked: bool) -> None:
        """Replace a topic; who consumed it repeats its old acks while there are new messages.

        Stock consumers always leave first: they could make their subscription again at its end.
        """
        leaving = [plan.name for plan in SUBSCRIPTIONS if not unasked or STOCK in plan.members]
        await self._workload.tell("leave", topic.name, leaving)

        async def delete(admin: AdminConnection) -> None:
            with suppress(NotFound):
                await admin.delete_topic(topic.name)

        try:
            await self._until_done(f"delete {topic.name}", delete, DELETE_TOPIC, topic.name)
            await self.create(topic)
            await self._come_back(topic, [plan.name for plan in SUBSCRIPTIONS])
        finally:
            await self._workload.tell("join", topic.name)

    async def _unsubscribe(self, topic: TopicPlan, plan: SubscriptionPlan) -> None:
        await self._workload.tell("leave", topic.name, [plan.name])

        async def drop(admin: AdminConnection) -> None:
            with suppress(NotFound):
                await admin.unsubscribe(topic.name, plan.name)

        try:
            target = f"{topic.name} {plan.name}"
            await self._until_done(f"unsubscribe {target}", drop, UNSUBSCRIBE, target)
            await self._subscribe(topic, plan)
            await self._come_back(topic, [plan.name])
        finally:
            await self._workload.tell("join", topic.name, [plan.name])

    async def _come_back(self, topic: TopicPlan, subscriptions: Sequence[str]) -> None:
        await asyncio.sleep(NEW_MESSAGES_SECONDS)
        await self._workload.tell("repeat acks", topic.name, subscriptions)

    async def _move(self, topic: TopicPlan) -> None:
        """Ask for it once: where a topic cannot move, it stays."""
        try:
            async with asyncio.timeout(2 * ATTEMPT_SECONDS_MAX):
                await self._call(lambda admin: admin.unload_topic(topic.name))
        except TimeoutError as error:
            raise Unavailable(f"{topic.name} was not moved in time") from error

    async def _subscribe(self, topic: TopicPlan, plan: SubscriptionPlan) -> None:
        """Make a subscription at the first message, and leave it to its consumers."""

        async def make(admin: AdminConnection) -> None:
            consumer = client.consumer(
                topic.name, plan.name, subscription_type=plan.kind, start_position="earliest"
            )
            with suppress(AccessDenied):  # A consumer that had not left has made it, and holds it.
                async with consumer:
                    pass

        async with connect(",".join(self._ground.urls)) as client:
            await self._until_done(f"subscribe {plan.name} to {topic.name}", make)

    # Calls.

    async def _until_done(self, what: str, work: Work, kind: str = "", target: str = "") -> None:
        began, outcome = now(), "unknown"
        uncertain = False
        try:
            async with asyncio.timeout(DONE_SECONDS_MAX):
                while outcome != "ok":
                    try:
                        async with asyncio.timeout(ATTEMPT_SECONDS_MAX):
                            await self._call(work)
                        outcome = "ok"
                    except (TimeoutError, DanubeError) as error:
                        last = error
                        uncertain = uncertain or not isinstance(error, InvalidRequest)
                        await asyncio.sleep(AGAIN_SECONDS)
        except TimeoutError:
            raise NotDone(f"could not {what} within {DONE_SECONDS_MAX:g} s: {last!r}") from None
        finally:
            if kind:
                if uncertain and outcome == "ok":
                    await asyncio.sleep(UNCERTAIN_SECONDS)
                self._write(began, outcome, kind, target)

    async def _call(self, work: Work) -> None:
        endpoint = next(self._endpoints)
        admin = AdminConnection(GrpcioChannel(endpoint), endpoint)
        try:
            await work(admin)
        finally:
            await admin.close()

    def _broken(self, target: str, detail: str) -> None:
        at = now()
        self._scribe.write(Deed(at, at, "ok", "broken", target, detail))

    def _write(self, began: float, outcome: Outcome, kind: str, target: str) -> None:
        self._scribe.write(Deed(began, now(), outcome, kind, target))
