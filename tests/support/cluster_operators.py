"""People who look after a simulated cluster: they move topics, empty brokers, replace machines."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydanube.cluster.planning import ask_for
from pydanube.errors import DanubeError, NotFound
from pydanube.metadata.raft_calls import NODE_INFO, Envelope, NodeInfo, decode, encode
from pydanube.model.ids import BrokerId
from pydanube.runtime.randomness import Randomness
from pydanube.storage.mirrors.replication import answers_needed
from pydanube.topics.topic import Topic
from pydanube.wire.calls import CallRefused
from tests.support.broker_machine import BrokerMachine
from tests.support.plain_engine import PlainChannel
from tests.support.plans import CLIENT_HOSTS, pick

if TYPE_CHECKING:
    from tests.support.cluster_world import ClusterWorld

RAFT_PORT = 7650
PATIENCE_SECONDS = 5.0
ATTEMPTS_MAX = 30
_FOR_EVER = 1e9
_UNHEARD_SECONDS = 10.0
_LOOKS = 30


class ClusterOperators:
    """Each deed ends by itself, whatever becomes of the brokers it is asked of."""

    def __init__(self, world: "ClusterWorld", randomness: Randomness) -> None:
        self._world = world
        self._randomness = randomness
        self._has_replaced = False
        self._has_added = False
        self._drained: set[BrokerId] = set()

    def _some_broker(self) -> Any:
        """Return what some broker that serves consists of; None if there is none."""
        serving = [
            machine.server._broker._serving
            for machine in self._world.machines.values()
            if machine.server is not None and machine.server._broker._serving is not None
        ]
        return pick(self._randomness, serving) if serving else None

    async def _persistently(self, ask: Callable[[Any], Awaitable[Any]]) -> bool:
        """Ask one broker after another until it is done, or it makes no sense to go on."""
        for _ in range(ATTEMPTS_MAX):
            serving = self._some_broker()
            if serving is not None:
                try:
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await ask(serving)
                        return True
                except NotFound:
                    return True  # Whoever is to be removed is gone.
                except (DanubeError, TimeoutError):
                    pass
            await asyncio.sleep(0.5)
        return False

    async def move_topic(self) -> None:
        await self._move(pick(self._randomness, self._world.plan.topics).name)

    async def _move(self, topic: str) -> None:
        serving = self._some_broker()
        if serving is None:
            return
        view = serving.clustering.directory.read()
        if topic not in view.owners or topic in view.markers:
            return
        to = pick(self._randomness, [None, *sorted(view.brokers)])
        self._world.note(f"{topic} is to move from {view.owners[topic].broker} to {to}")
        step = ask_for(view, topic, "unload", 0, to=to)
        with suppress(DanubeError, TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await serving.metadata.transact(step.conditions, step.operations)

    async def move_unheard(self) -> None:
        """Let a topic leave its broker in order, while no client hears what that one answers."""
        world, network = self._world, self._world.network
        topic = pick(self._randomness, world.plan.reliable).name
        machine = self._server_of(topic)
        if machine is None:
            return
        world.note(f"clients do not hear {machine.name}")
        for host in CLIENT_HOSTS:
            network.slow(machine.name, host, (_UNHEARD_SECONDS, _UNHEARD_SECONDS))
        await asyncio.sleep(self._randomness.uniform(0.05, 0.5))
        await self._move(topic)
        for _ in range(_LOOKS):
            if self._server_of(topic) is not machine:
                break
            await asyncio.sleep(0.1)
        for host in CLIENT_HOSTS:
            network.slow(machine.name, host, network.links.delay_seconds)
            with suppress(ConnectionError):
                network.break_connections(machine.name, host)

    async def move_unsure(self) -> None:
        """Cut an owner off from other brokers for about a lease, while it hands a topic over.

        What it has taken in before is synced meanwhile, so that it is not known whose it is.
        """
        world, network = self._world, self._world.network
        topic = pick(self._randomness, world.plan.reliable).name
        machine = self._server_of(topic)
        if machine is None:
            return
        machine.disk.slow("sync", self._randomness.uniform(0.4, 0.9))
        await self._move(topic)
        for _ in range(_LOOKS):
            served = self._served_by(machine, topic)
            if served is None or served.closing() is not None:
                break
            await asyncio.sleep(0.05)
        others = [name for name in world.machines if name != machine.name]
        world.note(f"{machine.name} is cut off while it hands {topic} over")
        for other in others:
            network.cut_both_ways(machine.name, other)
        await asyncio.sleep(self._randomness.uniform(0.6, 1.0))
        for other in others:
            network.mend(machine.name, other)
        machine.disk.slow("sync", 0.0)

    def _served_by(self, machine: BrokerMachine, topic: str) -> Topic | None:
        serving = machine.server._broker._serving if machine.server is not None else None
        return serving.topics.find(topic) if serving is not None else None

    def _server_of(self, topic: str) -> BrokerMachine | None:
        for machine in self._world.machines.values():
            if self._served_by(machine, topic) is not None:
                return machine
        return None

    async def drain_broker(self) -> None:
        serving = self._some_broker()
        brokers = sorted(serving.clustering.directory.view.brokers) if serving is not None else []
        if not brokers:
            return
        broker = pick(self._randomness, brokers)
        self._world.note(f"broker {broker} is drained")
        self._drained.add(broker)
        with suppress(DanubeError, TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await serving.clustering.operations.drain(broker, seconds_max=PATIENCE_SECONDS)
        await asyncio.sleep(self._randomness.uniform(0.1, 1.0))
        await self._activate(broker)

    async def activate_all(self) -> None:
        """Let every broker serve again that was drained."""
        for broker in sorted(self._drained):
            await self._activate(broker)

    async def _activate(self, broker: BrokerId) -> None:
        async def activate(serving: Any) -> None:
            if broker in serving.clustering.directory.view.brokers:
                await serving.clustering.operations.activate(broker, "drained enough")

        await self._persistently(activate)

    # Machines that come and go.

    async def replace_machine(self) -> None:
        """Lose a disk for good, once, if copies cover it; mostly another machine comes instead."""
        world = self._world
        running = [each for each in world.machines.values() if each.server is not None]
        if self._has_replaced or world.plan.replicas < 2 or not running:
            return
        machine = pick(self._randomness, running)
        serving = machine.server._broker._serving if machine.server is not None else None
        if serving is None:
            return
        self._has_replaced = True
        broker = serving.broker_id
        world.nemesis.away[machine.name] = _FOR_EVER
        machine.cut_power(self._randomness)
        # What it has asked for may still happen; after this it has or never will.
        await asyncio.sleep(2.0)
        if not await self._is_covered(broker):
            world.note(f"the disk of {machine.name} is not lost: it alone has something")
            world.nemesis.away.pop(machine.name, None)
            return
        world.note(f"the disk of {machine.name} is lost, and broker {broker} with it")
        world.machines.pop(machine.name, None)  # It may have been removed meanwhile.
        await self._persistently(lambda other: other.opened.raft.remove_member(broker))
        if self._randomness.below(3):
            await self._add(world.add_machine(f"new-{machine.name}", joins=True))

    async def _is_covered(self, broker: BrokerId) -> bool:
        covered = False

        async def look(serving: Any) -> None:
            nonlocal covered
            await serving.metadata.read_barrier()
            view = serving.clustering.directory.read()
            covered = all(
                replicas.epoch <= view.handovers.get(topic, 0)
                or len([each for each in replicas.members if each != broker])
                >= answers_needed(len(replicas.members))
                for topic, replicas in view.replicas.items()
            )

        return await self._persistently(look) and covered

    async def change_members(self) -> None:
        """Add a broker, and remove it again after a while."""
        if self._has_added:
            return
        self._has_added = True
        machine = self._world.add_machine("extra", joins=True)
        node = await self._add(machine)
        await asyncio.sleep(self._randomness.uniform(0.5, 3.0))
        if node is None or self._randomness.below(2):
            return
        self._world.note(f"broker {node} is removed")
        self._world.nemesis.away[machine.name] = _FOR_EVER
        if machine.server is not None and not machine.is_busy:
            # Emptied first: what it alone has must not go with it.
            await machine.stop()
        if await self._is_covered(BrokerId(node)):
            self._world.machines.pop(machine.name, None)
            await self._persistently(lambda other: other.opened.raft.remove_member(node))
        else:
            self._world.nemesis.away.pop(machine.name, None)

    async def _add(self, machine: BrokerMachine) -> int | None:
        """Let a machine that waits for it into the cluster, and let it vote."""
        node = await self._number_of(machine)
        if node is None:
            return None
        address = f"{machine.name}:{RAFT_PORT}"
        self._world.note(f"{machine.name} joins as broker {node}")
        await self._persistently(lambda other: other.opened.raft.add_member(node, address))
        await self._persistently(lambda other: other.opened.raft.promote(node))
        return node

    async def _number_of(self, machine: BrokerMachine) -> int | None:
        host = self._world.network.host(CLIENT_HOSTS[0])
        for _ in range(ATTEMPTS_MAX):
            channel = PlainChannel(host, machine.name, RAFT_PORT)
            try:
                request = encode(Envelope(machine.config.cluster_name, b""))
                reply = await channel.unary(NODE_INFO, request, timeout_seconds=1.0)
                return decode(reply, NodeInfo).node
            except CallRefused:
                await asyncio.sleep(0.5)
            finally:
                await channel.close()
        return None
