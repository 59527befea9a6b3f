"""Plays transcripts of a Raft cluster: what happens above `----`, what the nodes decide below.

A block is a list of commands, `----`, and the decisions they led to; an empty line ends it. `#`
begins a comment. Messages wait on the network until they are delivered, lost or settled.

    cluster NODE … [learners=4,5] [append-bytes=N] [in-flight=N] [lag=N]
    joiner NODE                     a node that belongs to no cluster yet
    tick NODE [COUNT]               campaign NODE [forced]
    propose NODE WORD               read NODE NUMBER
    members NODE add|promote|remove OTHER
    transfer NODE TO                snapshot NODE [keep=N]
    deliver [FROM TO]               what waits now, in order; answers wait for the next time
    lose FROM TO | lose             what waits now
    cut NODE …                      lose all from and to these nodes, until told otherwise
    mend
    settle                          deliver until nothing waits
    quiet-settle                    the same, and say only who leads and what was applied
    hold NODE                       its disk hangs: what it decided is not stored
    release NODE                    the disk goes on
    crash NODE                      it starts anew with what it had stored
    show NODE
"""

from collections.abc import Callable, Iterator

from pydanube.errors import DanubeError
from pydanube.metadata.raft.core import Raft
from pydanube.metadata.raft.entries import (
    EntryKind,
    LogEntry,
    Snapshot,
    Stored,
    decode_membership,
    founded,
    nothing_stored,
)
from pydanube.metadata.raft.leader import Leader
from pydanube.metadata.raft.membership import Membership
from pydanube.metadata.raft.messages import (
    Append,
    Appended,
    Heartbeat,
    HeartbeatAnswer,
    InstallSnapshot,
    Message,
    Refused,
    RequestVote,
    TakeOver,
    Vote,
)
from pydanube.metadata.raft.ready import Ready
from pydanube.metadata.raft.settings import RaftSettings
from tests.support.raft_machine import Disk

SEPARATOR = "----"
DELIVERIES_MAX = 10_000


def rewritten(text: str) -> str:
    """Return the transcript with the decisions that are made now."""
    transcript = Transcript()
    blocks = [block for block in text.strip().split("\n\n") if block]
    return "\n\n".join(_played(block, transcript) for block in blocks) + "\n"


def _played(block: str, transcript: "Transcript") -> str:
    commands: list[str] = []
    for line in block.splitlines():
        if line == SEPARATOR:
            break
        commands.append(line)
    if all(line.startswith("#") for line in commands):
        return block
    decisions = [
        decision
        for line in commands
        if not line.startswith("#")
        for decision in transcript.play(line)
    ]
    return "\n".join([*commands, SEPARATOR, *(decisions or ["nothing"])])


class Node:
    """A core, its disk, and what is under way to the disk."""

    def __init__(self, number: int, settings: RaftSettings, stored: Stored) -> None:
        self.number = number
        self.settings = settings
        self.disk = Disk(stored)
        self.held = False
        self.start()

    def start(self) -> None:
        # The first to wait, so that times are easy to count.
        self.raft = Raft(self.number, self.settings, self.disk.recover(), lambda limit: 0)
        self.pending: Ready | None = None
        self.was = "follower"


class Transcript:
    """A cluster and the messages between its nodes."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.waiting: list[Message] = []
        self.unreachable: set[int] = set()
        self.settings = RaftSettings()

    def play(self, line: str) -> Iterator[str]:
        """Carry out one command and tell what the nodes decide."""
        name, *words = line.split()
        command: Callable[..., Iterator[str]] = getattr(self, "do_" + name.replace("-", "_"))
        try:
            yield from command(*words)
        except DanubeError as error:
            yield f"refused: {error}"
        yield from self.carry_out()

    def carry_out(self) -> Iterator[str]:
        """Let every node whose disk works do what it has decided."""
        for node in self.nodes.values():
            while not node.held and (node.pending or node.raft.has_ready()):
                yield from self._begin(node)
                yield from self._finish(node)
            if node.held and node.pending is None and node.raft.has_ready():
                yield from self._begin(node)
            yield from self._role(node)

    def _role(self, node: Node) -> Iterator[str]:
        raft = node.raft
        role = type(raft.role).__name__.lower()
        now = f"{role} of term {raft.term}" if isinstance(raft.role, Leader) else role
        if now != node.was:
            node.was = now
            yield f"{node.number} is {now}"

    def _begin(self, node: Node) -> Iterator[str]:
        yield from self._role(node)
        if node.pending is not None:
            return
        ready = node.pending = node.raft.ready()
        for message in ready.send_first:
            yield self._send(message)
        if ready.snapshot is not None:
            node.disk.write(ready.snapshot)
            yield f"{node.number} stores the snapshot at {_place(ready.snapshot)}"
        if ready.hard_state is not None:
            node.disk.write(ready.hard_state)
            vote = ready.hard_state.vote
            yield f"{node.number} stores term {ready.hard_state.term}, vote {vote or 'none'}"
        for entry in ready.entries:
            node.disk.write(entry)
        if ready.entries:
            yield f"{node.number} stores {_entries(ready.entries)}"

    def _finish(self, node: Node) -> Iterator[str]:
        ready, node.pending = node.pending, None
        assert ready is not None
        node.disk.sync()
        for message in ready.send_after:
            yield self._send(message)
        if ready.snapshot is not None:
            yield f"{node.number} becomes the state at {ready.snapshot.index}"
        if ready.committed:
            yield f"{node.number} applies {_entries(ready.committed)}"
        for read in ready.reads:
            seen = "must ask anew" if read.index is None else f"sees everything up to {read.index}"
            yield f"{node.number} read {read.context} {seen}"
        node.raft.advance(ready)

    def _send(self, message: Message) -> str:
        if self.unreachable.isdisjoint((message.sender, message.to)):
            self.waiting.append(message)
        return f"{message.sender} -> {message.to} {_describe(message)}"

    def do_cluster(self, *words: str) -> Iterator[str]:
        options = _options(words)
        names = {"append-bytes": "append_bytes_max", "in-flight": "in_flight_messages_max"}
        names |= {"lag": "promotion_lag_max"}
        chosen = {names[name]: int(value) for name, value in options.items() if name in names}
        self.settings = RaftSettings(heartbeat_ticks=1, election_ticks=3, **chosen)  # type: ignore[arg-type]
        voters = {int(word): f"n{word}" for word in words if "=" not in word}
        learners = {
            int(word): f"n{word}" for word in options.get("learners", "").split(",") if word
        }
        stored = founded(Membership(voters, learners), b"")
        for number in [*voters, *learners]:
            self.nodes[number] = Node(number, self.settings, stored)
        yield from ()

    def do_joiner(self, number: str) -> Iterator[str]:
        self.nodes[int(number)] = Node(int(number), self.settings, nothing_stored(b""))
        yield from ()

    def do_tick(self, number: str, count: str = "1") -> Iterator[str]:
        for _ in range(int(count)):
            self._raft(number).tick()
            yield from self.carry_out()

    def do_campaign(self, number: str, *words: str) -> Iterator[str]:
        self._raft(number).campaign(forced="forced" in words)
        yield from ()

    def do_propose(self, number: str, word: str) -> Iterator[str]:
        self._raft(number).propose(word.encode())
        yield from ()

    def do_read(self, number: str, context: str) -> Iterator[str]:
        self._raft(number).read_index(int(context))
        yield from ()

    def do_members(self, number: str, verb: str, other: str) -> Iterator[str]:
        raft, node = self._raft(number), int(other)
        members = raft.membership
        match verb:
            case "add":
                raft.propose_membership(members.with_member(node, f"n{node}"))
            case "promote":
                raft.propose_membership(members.with_voter(node))
            case _:
                raft.propose_membership(members.without(node))
        yield from ()

    def do_transfer(self, number: str, to: str) -> Iterator[str]:
        self._raft(number).transfer(int(to))
        yield from ()

    def do_snapshot(self, number: str, *words: str) -> Iterator[str]:
        node = self.nodes[int(number)]
        log = node.raft.log
        term = log.term_at(log.applied)
        assert term is not None
        snapshot = Snapshot(log.applied, term, log.membership_at(log.applied), b"")
        node.raft.cut_log(snapshot, int(_options(words).get("keep", "0")))
        node.disk.write(node.raft.stored_now())
        node.disk.sync()
        begins = f"its log begins after {log.base_index}"
        yield f"{number} has a snapshot at {_place(snapshot)}, {begins}"

    def do_deliver(self, sender: str = "", to: str = "") -> Iterator[str]:
        for message in self._take(sender, to):
            yield from self._deliver(message)

    def do_lose(self, sender: str = "", to: str = "") -> Iterator[str]:
        self._take(sender, to)
        yield from ()

    def do_cut(self, *numbers: str) -> Iterator[str]:
        self.unreachable |= {int(number) for number in numbers}
        yield from ()

    def do_mend(self) -> Iterator[str]:
        self.unreachable.clear()
        yield from ()

    def do_settle(self) -> Iterator[str]:
        deliveries = 0
        while self.waiting:
            deliveries += 1
            assert deliveries < DELIVERIES_MAX, "messages without an end"
            yield from self._deliver(self.waiting.pop(0))

    def do_quiet_settle(self) -> Iterator[str]:
        for line in self.do_settle():
            if " is leader" in line or " applies " in line or " read " in line:
                yield line

    def do_hold(self, number: str) -> Iterator[str]:
        self.nodes[int(number)].held = True
        yield from ()

    def do_release(self, number: str) -> Iterator[str]:
        node = self.nodes[int(number)]
        node.held = False
        if node.pending is not None:
            yield from self._finish(node)

    def do_crash(self, number: str) -> Iterator[str]:
        node = self.nodes[int(number)]
        node.disk.unsynced = []
        node.held = False
        node.start()
        yield from ()

    def do_show(self, number: str) -> Iterator[str]:
        raft = self._raft(number)
        log = raft.log
        voters = ",".join(map(str, sorted(raft.membership.voters)))
        learners = ",".join(map(str, sorted(raft.membership.learners))) or "none"
        terms = " ".join(f"{entry.index}/{entry.term}" for entry in log.kept_entries())
        yield (
            f"{number}: term {raft.term}, leader {raft.leader or 'none'}, "
            f"voters {voters or 'none'}, learners {learners}, committed {log.committed}, "
            f"log after {log.base_index}: {terms}"
        )
        if isinstance(raft.role, Leader):
            for other, progress in raft.role.progress.items():
                yield (
                    f"{number} knows of {other}: match {progress.match}, next {progress.next}, "
                    f"{progress.phase.name.lower()}{' paused' if progress.is_paused else ''}"
                )

    def _raft(self, number: str) -> Raft:
        return self.nodes[int(number)].raft

    def _take(self, sender: str, to: str) -> list[Message]:
        taken = [
            message
            for message in self.waiting
            if not sender or (message.sender, message.to) == (int(sender), int(to))
        ]
        self.waiting = [message for message in self.waiting if message not in taken]
        return taken

    def _deliver(self, message: Message) -> Iterator[str]:
        self.nodes[message.to].raft.step(message)
        yield from self.carry_out()


def _options(words: tuple[str, ...]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words if "=" in word]
    return {name: value for name, _, value in pairs}


def _place(snapshot: Snapshot) -> str:
    return f"{snapshot.index}/{snapshot.term}"


def _entries(entries: tuple[LogEntry, ...]) -> str:
    return ", ".join(map(_entry, entries))


def _entry(entry: LogEntry) -> str:
    place = f"{entry.index}/{entry.term}"
    match entry.kind:
        case EntryKind.COMMAND:
            return f"{place} {entry.data.decode()}"
        case EntryKind.NOTHING:
            return place
        case EntryKind.MEMBERSHIP:
            members = decode_membership(entry.data)
            voters = ",".join(map(str, members.voters))
            learners = ",".join(map(str, members.learners))
            return f"{place} voters {voters}" + (f" learners {learners}" if learners else "")


def _describe(message: Message) -> str:
    match message:
        case RequestVote():
            what = "would you vote" if message.trial else "vote"
            forced = ", forced" if message.forced else ""
            end = f"{message.last_index}/{message.last_term}"
            return f"{what} in term {message.term}? log ends {end}{forced}"
        case Vote():
            answer = "yes" if message.granted else "no"
            return f"{answer}{' (trial)' if message.trial else ''}, term {message.term}"
        case Append():
            after = f"{message.previous_index}/{message.previous_term}"
            entries = _entries(message.entries) or "nothing"
            return f"append after {after}: {entries}; committed {message.committed}"
        case Appended():
            return f"appended to {message.match}"
        case Refused():
            hint = f"{message.hint_index}/{message.hint_term}"
            return f"refused after {message.previous_index}, try {hint}"
        case Heartbeat():
            return f"heartbeat, committed {message.committed}, round {message.round}"
        case HeartbeatAnswer():
            return f"heard round {message.round}, term {message.term}"
        case InstallSnapshot():
            return f"snapshot at {_place(message.snapshot)}"
        case TakeOver():
            return "take over"
