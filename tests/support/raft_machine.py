"""One node of a simulated Raft cluster: the core, a driver in small steps, and a bad disk."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import msgspec

from pydanube.errors import DanubeError
from pydanube.metadata.raft.core import Raft
from pydanube.metadata.raft.entries import (
    EntryKind,
    HardState,
    LogEntry,
    Snapshot,
    Stored,
)
from pydanube.metadata.raft.messages import Message
from pydanube.metadata.raft.ready import Ready
from pydanube.metadata.raft.settings import RaftSettings
from tests.support.raft_laws import RaftLaws

Record = HardState | LogEntry | Snapshot | Stored
Values = dict[str, str]
Outcome = Callable[[object], None]


class Disk:
    """Writes are lost at a crash unless synced: all of them, or those behind a torn place.

    A log is a sequence of records, as on the real disk. A snapshot replaces its file as a whole,
    and the log is begun anew as a whole (`Stored`).
    """

    def __init__(self, stored: Stored) -> None:
        self.durable: list[Record] = [stored]
        self.unsynced: list[Record] = []

    def write(self, record: Record) -> None:
        self.unsynced.append(record)

    def sync(self) -> None:
        self.durable += self.unsynced
        self.unsynced = []
        self._shorten()

    def crash(self, random: Random) -> None:
        kept = random.choice([0, 0, random.randint(0, len(self.unsynced)), len(self.unsynced)])
        self.durable += self.unsynced[:kept]
        self.unsynced = []

    def _shorten(self) -> None:
        if len(self.durable) > 500:
            self.durable = [self.recover()]

    def recover(self) -> Stored:
        stored, *records = self.durable
        assert isinstance(stored, Stored)
        for record in records:
            stored = _after(stored, record)
        return stored


def _after(stored: Stored, record: Record) -> Stored:
    match record:
        case HardState():
            return msgspec.structs.replace(stored, hard_state=record)
        case LogEntry():
            before = [entry for entry in stored.entries if entry.index < record.index]
            return msgspec.structs.replace(stored, entries=(*before, record))
        case Snapshot():
            return _with_snapshot(stored, record)
        case Stored():
            return record


def _with_snapshot(stored: Stored, snapshot: Snapshot) -> Stored:
    terms = {entry.index: entry.term for entry in stored.entries} | {
        stored.base_index: stored.base_term
    }
    if terms.get(snapshot.index) == snapshot.term:
        return msgspec.structs.replace(stored, snapshot=snapshot)
    return Stored(stored.hard_state, snapshot, snapshot.index, snapshot.term, ())


@dataclass
class Driver:
    """The mistakes a driver could make."""

    acks_before_sync: bool = False
    forgets_hard_state: bool = False
    cuts_before_snapshot: bool = False
    skips_log_sync: bool = False
    reads_locally: bool = False
    reads_before_applied: bool = False
    applies_before_sync: bool = False


@dataclass
class _Read:
    key: str
    index: int
    answer: Outcome


@dataclass
class RaftMachine:
    """A computer with one node. `later` runs something after a delay, `post` sends a message."""

    node: int
    settings: RaftSettings
    disk: Disk
    random: Random
    laws: RaftLaws
    later: Callable[[float, Callable[[], None]], None]
    post: Callable[[Message], None]
    snapshot_entries: int
    keep_entries: int
    disk_ms: float
    driver: Driver
    on_election: Callable[["RaftMachine"], None]
    on_commit: Callable[["RaftMachine"], None]
    life: int = 0
    alive: bool = False
    paused_until: float = 0.0
    held: list[Message] = field(default_factory=list)

    def start(self) -> None:
        self.life += 1
        self.alive = True
        self.held = []
        stored = self.disk.recover()
        self.raft = Raft(self.node, self.settings, stored, self.random.randrange)
        self.applied = stored.snapshot.index
        self.values: Values = msgspec.json.decode(stored.snapshot.state, type=Values)
        self.waiting: dict[tuple[int, int], Outcome] = {}
        self.reads: dict[int, tuple[str, Outcome]] = {}
        self.confirmed: list[_Read] = []
        self.last_context = 0
        self.busy = False

    def crash(self) -> None:
        self.alive = False
        self.life += 1
        self.disk.crash(self.random)

    def tick(self) -> None:
        self.raft.tick()
        self.go_on()

    def receive(self, message: Message) -> None:
        self.raft.step(message)
        self.go_on()

    def propose(self, command: tuple[str, ...], answer: Outcome) -> bool:
        try:
            place = self.raft.propose(msgspec.json.encode(command))
        except DanubeError:
            return False
        self.waiting[place] = answer
        self.go_on()
        return True

    def read(self, key: str, answer: Outcome) -> bool:
        if self.driver.reads_locally:
            answer(self.values.get(key))
            return True
        self.last_context += 1
        try:
            self.raft.read_index(self.last_context)
        except DanubeError:
            return False
        self.reads[self.last_context] = (key, answer)
        self.go_on()
        return True

    def go_on(self) -> None:
        """Begin to carry out what the core has decided, unless that is under way."""
        if self.raft.is_leader and self.laws.saw_leader(self.raft):
            self.on_election(self)
        if self.busy or not self.raft.has_ready():
            return
        self.busy = True
        ready = self.raft.ready()
        for entry in ready.entries:
            self.laws.saw_entry(self.node, entry, self.raft.log.term_at(entry.index - 1))
        for message in ready.send_first:
            self.post(message)
        if self.driver.acks_before_sync:
            for message in ready.send_after:
                self.post(message)
        if self.driver.applies_before_sync:
            self._give_to_state_machine(ready)
        if not ready.must_sync:
            self._finish(ready)
            return
        self._write(ready)
        life = self.life
        self.later(self.random.expovariate(1 / self.disk_ms), lambda: self._synced(ready, life))

    def _write(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            self.disk.write(ready.snapshot)
        if ready.hard_state is not None and not self.driver.forgets_hard_state:
            self.disk.write(ready.hard_state)
        for entry in ready.entries:
            self.disk.write(entry)

    def _synced(self, ready: Ready, life: int) -> None:
        if life != self.life:
            return
        if not self.driver.skips_log_sync:
            self.disk.sync()
        self._finish(ready)

    def _finish(self, ready: Ready) -> None:
        if not self.driver.acks_before_sync:
            for message in ready.send_after:
                self.post(message)
        if not self.driver.applies_before_sync:
            self._give_to_state_machine(ready)
        for answered in ready.reads:
            key, answer = self.reads.pop(answered.context)
            if answered.index is not None:
                self.confirmed.append(_Read(key, answered.index, answer))
        self._answer_reads()
        self.raft.advance(ready)
        self.busy = False
        if ready.committed and self.raft.is_leader:
            self.on_commit(self)
        self._snapshot_if_due()
        self.go_on()

    def _give_to_state_machine(self, ready: Ready) -> None:
        if ready.snapshot is not None and ready.snapshot.index > self.applied:
            self.applied = ready.snapshot.index
            self.values = msgspec.json.decode(ready.snapshot.state, type=Values)
        for entry in ready.committed:
            self._apply(entry)

    def _apply(self, entry: LogEntry) -> None:
        self.laws.saw_applied(self.node, self.raft.term, entry, self.applied)
        self.applied = entry.index
        result: object = None
        if entry.kind is EntryKind.COMMAND:
            result = _carry_out(self.values, msgspec.json.decode(entry.data))
        for place in [place for place in self.waiting if place[0] <= entry.index]:
            answer = self.waiting.pop(place)
            # Another entry at its place: the command has failed, or a snapshot hid its outcome.
            if place == (entry.index, entry.term):
                answer(result)

    def _answer_reads(self) -> None:
        hasty = self.driver.reads_before_applied
        for read in [read for read in self.confirmed if hasty or read.index <= self.applied]:
            self.confirmed.remove(read)
            read.answer(self.values.get(read.key))

    def _snapshot_if_due(self) -> None:
        log = self.raft.log
        if self.applied - log.snapshot.index < self.snapshot_entries:
            return
        if log.unstored_snapshot is not None or log.applied != self.applied:
            return
        term = log.term_at(self.applied)
        assert term is not None
        snapshot = Snapshot(
            self.applied, term, log.membership_at(self.applied), msgspec.json.encode(self.values)
        )
        self.busy = True
        life = self.life

        def cut() -> None:
            if life == self.life:
                if self.raft.cut_log(snapshot, self.keep_entries):
                    self.disk.write(self.raft.stored_now())
                # A crash may fall between the snapshot and the new log as well.
                self.later(self.random.expovariate(1 / self.disk_ms), finish)

        def finish() -> None:
            if life == self.life:
                self.disk.sync()
                self.busy = False
                self.go_on()

        if self.driver.cuts_before_snapshot:
            # The log is cut durably, the snapshot only later.
            shortened = self.disk.recover()
            entries = tuple(entry for entry in shortened.entries if entry.index > snapshot.index)
            self.raft.cut_log(snapshot, 0)
            self.disk.durable = [
                msgspec.structs.replace(
                    shortened,
                    entries=entries,
                    base_index=snapshot.index,
                    base_term=snapshot.term,
                    snapshot=msgspec.structs.replace(
                        shortened.snapshot, index=snapshot.index, term=snapshot.term
                    ),
                )
            ]
            self.disk.write(snapshot)
            self.later(self.random.expovariate(1 / self.disk_ms), finish)
            return
        self.disk.write(snapshot)

        def persisted() -> None:
            if life == self.life:
                self.disk.sync()
                cut()

        self.later(self.random.expovariate(1 / self.disk_ms), persisted)


def _carry_out(values: Values, command: list[str]) -> object:
    kind, key, value, *rest = command
    if kind == "write":
        values[key] = value
        return True
    matches = values.get(key) == (rest[0] or None)
    if matches:
        values[key] = value
    return matches
