"""A Raft cluster by seed: a network and disks that misbehave, clients, and laws that must hold.

No event loop: time is a heap of things to do. A seed draws the size of the cluster, its limits and
its faults; the same seed always lives the same life.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from pydanube.errors import DanubeError
from pydanube.metadata.raft.entries import Stored, founded, nothing_stored
from pydanube.metadata.raft.membership import Membership
from pydanube.metadata.raft.messages import Message
from pydanube.metadata.raft.settings import RaftSettings
from tests.support.linearizability import READ, SWAP, WRITE, Operation, Undecided, is_linearizable
from tests.support.raft_laws import LawBroken, RaftLaws
from tests.support.raft_machine import Disk, Driver, RaftMachine

EMPTY = b"{}"
TICK_MS = 10.0
EVENTS_MAX = 200_000


@dataclass
class Profile:
    """What a world is like; None lets the seed decide."""

    nodes: int | None = None
    seconds: float = 4.0
    crashes: float = 1.0
    partitions: float = 1.0
    one_way: float = 1.0
    pauses: float = 0.5
    transfers: float = 0.3
    members: float = 0.5
    loss: float | None = None
    stragglers: float | None = None
    """How many messages take twenty times as long as the others."""
    crash_at_commit: float = 0.0
    """How often a leader dies right after it has committed something."""
    crash_at_election: float = 0.0
    """How often a leader dies soon after its election."""
    change_at_election: float = 0.0
    """How often a leader changes the members as its first act."""
    impatient: float = 0.0
    """How often a leader that is cut off is asked to remove one node after another."""
    hasty: float = 0.0
    """How often a leader leaves a change behind, and the next one begins with another change."""
    isolated: float = 0.0
    """How often one node alone is cut off for longer than an election takes."""
    is_steady: bool = False
    """Nothing happens to leaders: the first one leads for ever."""
    delay_ms: float | None = None
    append_bytes_max: int | None = None
    apply_bytes_max: int | None = None
    snapshot_entries: int | None = None
    disk_ms: float | None = None
    clients: int = 4
    extra: int = 2
    """Nodes that are no members at first."""
    driver: Driver = field(default_factory=Driver)


class RaftWorld:
    def __init__(self, seed: int, profile: Profile | None = None) -> None:
        self.seed = seed
        self.profile = profile or Profile()
        self.random = Random(seed)
        self.now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.laws = RaftLaws()
        self.history: dict[str, list[Operation]] = {key: [] for key in "ab"}
        self.counts: Counter[str] = Counter()
        self._values = 0
        self._calm = False
        self._cuts: set[tuple[int, int]] = set()
        self._successor: Callable[[RaftMachine], None] | None = None
        """What happens to the next leader."""
        self._is_isolating = False
        self._draw_world()

    def _draw_world(self) -> None:
        draw, profile = self.random, self.profile
        size = profile.nodes or draw.choice([3, 3, 5])
        self.loss = draw.choice([0.0, 0.02, 0.2]) if profile.loss is None else profile.loss
        stragglers = draw.choice([0.0, 0.0, 0.03])
        self.stragglers = stragglers if profile.stragglers is None else profile.stragglers
        self.delay_ms = profile.delay_ms or draw.choice([1.0, 3.0, 12.0])
        bytes_max = profile.append_bytes_max or draw.choice([1, 1, 60, 100_000])
        settings = RaftSettings(
            heartbeat_ticks=2,
            election_ticks=8,
            snapshot_ticks=30,
            append_bytes_max=bytes_max,
            in_flight_messages_max=draw.choice([1, 2, 16]),
            apply_bytes_max=profile.apply_bytes_max or draw.choice([1, 100_000]),
            promotion_lag_max=draw.choice([2, 1_000]),
        )
        founders = Membership({node: f"n{node}" for node in range(1, size + 1)}, {})
        snapshot_entries = profile.snapshot_entries or draw.choice([3, 10, 1_000])
        self.machines: dict[int, RaftMachine] = {}
        for node in range(1, size + 1 + profile.extra):
            stored: Stored = founded(founders, EMPTY) if node <= size else nothing_stored(EMPTY)
            self.machines[node] = RaftMachine(
                node,
                settings,
                Disk(stored),
                Random(self.random.getrandbits(32)),
                self.laws,
                self.later,
                self.post,
                snapshot_entries,
                draw.choice([0, 2, 20]),
                profile.disk_ms or draw.choice([0.5, 4.0, 15.0]),
                profile.driver,
                self._after_election,
                self._after_commit,
            )

    # Time and network.

    def later(self, delay_ms: float, work: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (self.now + delay_ms, self._number, work))

    def post(self, message: Message) -> None:
        copies = 1
        if not self._calm:
            if self.random.random() < self.loss:
                self.counts["lost"] += 1
                return
            copies += self.random.random() < self.loss / 2
        for _ in range(copies):
            delay = self.random.expovariate(1 / self.delay_ms)
            if self.random.random() < self.stragglers:
                delay *= 20
            self.later(delay, lambda: self._deliver(message))

    def _deliver(self, message: Message) -> None:
        machine = self.machines[message.to]
        if (message.sender, message.to) in self._cuts or not machine.alive:
            return
        if machine.paused_until > self.now:
            machine.held.append(message)
        else:
            machine.receive(message)

    def _tick(self, machine: RaftMachine, life: int) -> None:
        if machine.life != life:
            return
        if machine.paused_until <= self.now:
            machine.tick()
        self.later(TICK_MS * self.random.uniform(0.8, 1.25), lambda: self._tick(machine, life))

    def _boot(self, machine: RaftMachine) -> None:
        if not machine.alive:
            machine.start()
            self.counts["starts"] += 1
            self._tick(machine, machine.life)

    # A life.

    def run(self) -> "RaftWorld":
        for machine in self.machines.values():
            self._boot(machine)
        end = self.profile.seconds * 1000
        self._plan_faults(end)
        for client in range(self.profile.clients):
            self.later(client * 7.0, lambda: self._work(end))
        self._live_until(end)
        self._calm_down()
        self._check_histories()
        return self

    def _live_until(self, end: float) -> None:
        events = 0
        while self._agenda and self._agenda[0][0] <= end:
            events += 1
            if events > EVENTS_MAX:
                raise LawBroken("the world is busy without an end")
            self.now, _, work = heapq.heappop(self._agenda)
            work()
        self.now = max(self.now, end)

    def _calm_down(self) -> None:
        """Heal everything: the cluster must come back, and everybody to the same state."""
        self._calm = True
        self._cuts.clear()
        for machine in self.machines.values():
            machine.paused_until = 0.0
            self._release_held(machine)
            self._boot(machine)
        unread = set(self.history)
        for _ in range(80):
            self._live_until(self.now + 100.0)
            if self._is_settled():
                if not unread:
                    return
                for key in sorted(unread):
                    self._read(key, lambda _, key=key: unread.discard(key))
        raise LawBroken(f"no recovery in calm: {self._describe()}")

    def _is_settled(self) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        members = leader.raft.membership
        states = [
            (machine.applied, machine.values, machine.raft.membership)
            for node, machine in self.machines.items()
            if members.address_of(node) is not None
        ]
        return all(state == states[0] for state in states)

    def _describe(self) -> str:
        return ", ".join(
            f"{node}: {type(machine.raft.role).__name__} term {machine.raft.term} "
            f"log {machine.raft.log.base_index}..{machine.raft.log.last_index} "
            f"committed {machine.raft.log.committed} members {machine.raft.membership}"
            for node, machine in self.machines.items()
        )

    def _leader(self) -> RaftMachine | None:
        leaders = [machine for machine in self._running() if machine.raft.is_leader]
        return max(leaders, key=lambda machine: machine.raft.term, default=None)

    def _running(self) -> list[RaftMachine]:
        return [
            machine
            for machine in self.machines.values()
            if machine.alive and machine.paused_until <= self.now
        ]

    # Clients.

    def _work(self, end: float) -> None:
        if self.now >= end:
            return
        key = self.random.choice(list(self.history))
        done = [False]

        def finished(_: object) -> None:
            if not done[0]:
                done[0] = True
                self.later(self.random.uniform(0, 60), lambda: self._work(end))

        kind = self.random.random()
        if kind < 0.45:
            self._read(key, finished)
        elif kind < 0.8:
            self._write(key, finished)
        else:
            self._swap(key, finished)
        # Whoever gets no answer goes on with something else.
        self.later(150.0, lambda: finished(None))

    def _some_machine(self) -> RaftMachine | None:
        leaders = [machine for machine in self._running() if machine.raft.is_leader]
        choices = leaders if leaders and self.random.random() < 0.9 else self._running()
        return self.random.choice(choices) if choices else None

    def _read(self, key: str, then: Callable[[object], None]) -> bool:
        operation = Operation(READ, None, self.now)

        def answered(value: object) -> None:
            operation.value, operation.ended = value, self.now
            self.counts["reads"] += 1
            then(value)

        machine = self._some_machine()
        taken = machine is not None and machine.read(key, answered)
        if taken:
            self.history[key].append(operation)
        return taken

    def _write(self, key: str, then: Callable[[object], None]) -> bool:
        self._values += 1
        value = str(self._values)
        return self._propose(Operation(WRITE, value, self.now), key, ("write", key, value), then)

    def _swap(self, key: str, then: Callable[[object], None]) -> bool:
        self._values += 1
        value = str(self._values)
        machine = self._some_machine()
        expected = machine.values.get(key) if machine is not None else None
        operation = Operation(SWAP, value, self.now, expected=expected)
        return self._propose(operation, key, ("swap", key, value, expected or ""), then)

    def _propose(
        self,
        operation: Operation,
        key: str,
        command: tuple[str, ...],
        then: Callable[[object], None],
    ) -> bool:
        def answered(happened: object) -> None:
            operation.ended, operation.happened = self.now, bool(happened)
            self.counts["writes"] += 1
            then(happened)

        machine = self._some_machine()
        taken = machine is not None and machine.propose(command, answered)
        if taken:
            self.history[key].append(operation)
        return taken

    def _check_histories(self) -> None:
        for key, history in self.history.items():
            # Unique values make a long history cheap; many unknown outcomes do not.
            try:
                decided = is_linearizable(history)
            except Undecided:
                self.counts["undecided"] += 1
                continue
            self.counts["histories"] += 1
            if not decided:
                lines = "\n".join(map(str, history))
                raise LawBroken(f"the history of {key} is not linearizable:\n{lines}")

    # Faults.

    def _plan_faults(self, end: float) -> None:
        profile = self.profile
        kinds: list[tuple[float, Callable[[], None]]] = [
            (profile.crashes, self._crash_one),
            (profile.crashes / 4, self._crash_all),
            (profile.partitions, self._partition),
            (profile.one_way, self._cut_one_way),
            (profile.pauses, self._pause),
            (profile.transfers, self._transfer),
            (profile.members, self._change_members),
            (profile.members, self._change_members),
            (profile.impatient, self._lose_patience),
            (profile.hasty, self._leave_a_change_behind),
            (profile.isolated, self._isolate),
        ]
        at = self.random.uniform(100, 400)
        while at < end:
            (kind,) = self.random.choices(
                [work for _, work in kinds], [weight for weight, _ in kinds]
            )
            self.later(at, kind)
            # A quarter of the time things are left alone.
            at += self.random.uniform(20, 250) * (4 if self.random.random() < 0.1 else 1)

    def _crash_one(self) -> None:
        leader = self._leader()
        running = self._running()
        if not running:
            return
        machine = leader if leader and self.random.random() < 0.5 else self.random.choice(running)
        self._crash(machine)

    def _lose_patience(self) -> None:
        """Cut a leader off, and ask it at once to remove those who do not answer."""
        leader = self._leader()
        if leader is None:
            return
        others = [node for node in leader.raft.membership.voters if node != leader.node]
        if len(others) < 2:
            self._change(leader)
            return
        self.counts["impatience"] += 1
        self._cut_for_a_while(self._ways_between({leader.node}))
        for other in self.random.sample(others, k=2):
            self._ask(leader, lambda members, other=other: members.without(other))

    def _leave_a_change_behind(self) -> None:
        """A leader promotes a learner while only that one hears it; the next leader removes it.

        Then the first may be elected by a majority of members that were never agreed on.
        """
        leader = self._leader()
        if leader is None or self._successor is not None:
            return
        members = leader.raft.membership
        if not members.learners:
            strangers = [node for node in self.machines if members.address_of(node) is None]
            if strangers:
                node = self.random.choice(strangers)
                self._ask(leader, lambda members: members.with_member(node, f"n{node}"))
            return
        self.counts["changes left behind"] += 1
        learner = self.random.choice(list(members.learners))
        self._cuts = self._ways_between({leader.node, learner})
        self._ask(leader, lambda members: members.with_voter(learner))
        rest = [node for node in members.voters if node != leader.node]

        def succeed(successor: RaftMachine) -> None:
            self._successor = None
            hearer = self.random.choice([node for node in rest if node != successor.node])
            self._cuts = self._ways_between({successor.node, hearer})
            self._ask(successor, lambda members: members.without(leader.node))
            self.later(self.random.uniform(30, 60), part)

        def part() -> None:
            self.later(self.random.uniform(200, 500), self._cuts.clear)

        def give_up() -> None:
            if self._successor is succeed:
                self._successor = None
                self._cuts.clear()

        self._successor = succeed
        self.later(600.0, give_up)

    def _isolate(self) -> None:
        """Cut one node off; if it leads, it must have noticed before it is heard again."""
        leader = self._leader()
        if leader is None or self._is_isolating:
            return
        nodes = [
            node for node in self.machines if not self.profile.is_steady or node != leader.node
        ]
        machine = self.machines[self.random.choice(nodes)]
        self._is_isolating = True
        self.counts["isolations"] += 1
        self._cuts = self._ways_between({machine.node})
        life = machine.life

        def mend() -> None:
            self._is_isolating = False
            self._cuts.clear()
            # Its clock may be slow by a fifth, and it counts its followers at every timeout.
            if not self._calm and machine.life == life and machine.raft.is_leader:
                raise LawBroken(f"node {machine.node} leads, though nobody has heard it for long")

        self.later(2.6 * TICK_MS * machine.settings.election_ticks, mend)

    def _ways_between(self, group: set[int]) -> set[tuple[int, int]]:
        nodes = list(self.machines)
        return {
            (one, other) for one in nodes for other in nodes if (one in group) != (other in group)
        }

    def _ask(self, leader: RaftMachine, change: Callable[[Membership], Membership]) -> None:
        if not leader.alive or not leader.raft.is_leader:
            return
        try:
            leader.raft.propose_membership(change(leader.raft.membership))
        except DanubeError:
            self.counts["changes refused"] += 1
            return
        self.counts["changes"] += 1
        leader.go_on()

    def _after_election(self, leader: RaftMachine) -> None:
        if self.profile.is_steady and self.laws.elections > 1:
            raise LawBroken(f"node {leader.node} took the lead, though all was well")
        if self._successor is not None:
            succeed = self._successor
            self.later(0.0, lambda: succeed(leader) if leader.alive else None)
        if not self._calm and self.random.random() < self.profile.change_at_election:
            self.later(self.random.choice([0.0, self.delay_ms]), lambda: self._change(leader))
        if not self._calm and self.random.random() < self.profile.crash_at_election:
            delay = self.random.uniform(0, 3 * self.delay_ms)
            self.later(delay, lambda: self._crash(leader) if leader.alive else None)

    def _after_commit(self, leader: RaftMachine) -> None:
        if not self._calm and self.random.random() < self.profile.crash_at_commit:
            self.later(0.0, lambda: self._crash(leader) if leader.alive else None)

    def _crash_all(self) -> None:
        for machine in self._running():
            self._crash(machine)

    def _crash(self, machine: RaftMachine) -> None:
        self.counts["crashes"] += 1
        machine.crash()
        self.later(self.random.choice([1.0, 50.0, 400.0]), lambda: self._boot(machine))

    def _partition(self) -> None:
        self.counts["partitions"] += 1
        nodes = list(self.machines)
        self.random.shuffle(nodes)
        leader = self._leader()
        size = self.random.randint(1, max(1, len(nodes) // 2))
        group = set(nodes[:size])
        if leader and self.random.random() < 0.5:
            group = {leader.node, *nodes[: self.random.randint(0, 1)]}
        ways = {
            (one, other) for one in nodes for other in nodes if (one in group) != (other in group)
        }
        self._cut_for_a_while(ways)

    def _cut_one_way(self) -> None:
        self.counts["one-way cuts"] += 1
        nodes = list(self.machines)
        ways = {
            (self.random.choice(nodes), self.random.choice(nodes))
            for _ in range(self.random.randint(1, len(nodes)))
        }
        self._cut_for_a_while(ways)

    def _cut_for_a_while(self, ways: set[tuple[int, int]]) -> None:
        self._cuts |= ways

        def mend() -> None:
            self._cuts -= ways

        self.later(self.random.uniform(20, 600), mend)

    def _pause(self) -> None:
        running = self._running()
        if not running:
            return
        self.counts["pauses"] += 1
        leader = self._leader()
        machine = leader if leader and self.random.random() < 0.6 else self.random.choice(running)
        length = self.random.uniform(20, 700)
        machine.paused_until = self.now + length
        life = machine.life

        def resume() -> None:
            if machine.life == life:
                # Its clock jumps: all the time that passed comes at once, or none of it.
                for _ in range(self.random.choice([0, int(length / TICK_MS)])):
                    machine.tick()
                self._release_held(machine)

        self.later(length, resume)

    def _release_held(self, machine: RaftMachine) -> None:
        """Let what came during a pause come in little by little: the node may act before."""
        held, machine.held = machine.held, []
        start = self.random.choice([0.0, 40.0])
        for message in held:
            delay = start + self.random.expovariate(1 / self.delay_ms)
            self.later(delay, lambda message=message: self._deliver(message))

    def _transfer(self) -> None:
        leader = self._leader()
        if leader is not None:
            voters = sorted(leader.raft.membership.voters)
            leader.raft.transfer(self.random.choice(voters))
            self.counts["transfers"] += 1
            leader.go_on()

    def _change_members(self) -> None:
        leaders = [machine for machine in self._running() if machine.raft.is_leader]
        if not leaders:
            return
        self._change(self.random.choice(leaders))

    def _change(self, leader: RaftMachine) -> None:
        raft = leader.raft
        if not leader.alive:
            return
        try:
            raft.propose_membership(self._other_members(raft.membership))
        except DanubeError:
            self.counts["changes refused"] += 1
            return
        self.counts["changes"] += 1
        leader.go_on()

    def _other_members(self, members: Membership) -> Membership:
        node = self.random.choice(list(self.machines))
        if members.learners and self.random.random() < 0.5:
            node = self.random.choice(list(members.learners))
        if node in members.learners:
            return members.with_voter(node)
        if node in members.voters:
            return members.without(node)
        return members.with_member(node, f"n{node}")


def check(seed: int, profile: Profile | None = None) -> RaftWorld:
    """Live one life; a broken law names the seed."""
    try:
        return RaftWorld(seed, profile).run()
    except AssertionError as error:
        error.add_note(f"seed {seed}, profile {profile}")
        raise
