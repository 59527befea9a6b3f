"""What nodes tell each other. Any message may be lost, late, repeated or out of order."""

from msgspec import Struct

from pydanube.metadata.raft.entries import LogEntry, Snapshot


class Envelope(Struct, frozen=True, array_like=True):
    """Every message names the sender's term, the sender and the receiver."""

    term: int
    sender: int
    to: int


class RequestVote(Envelope, frozen=True, array_like=True, tag=1):
    """Asks for a vote. A trial (pre-vote) asks what the answer would be and binds nobody.

    `forced` comes from a node that its leader told to take over, so the leader's lease is void.
    """

    last_index: int
    last_term: int
    trial: bool
    forced: bool


class Vote(Envelope, frozen=True, array_like=True, tag=2):
    """Answers RequestVote. A granted trial names the term that was asked about."""

    granted: bool
    trial: bool


class Append(Envelope, frozen=True, array_like=True, tag=3):
    """The leader's entries after the one at `previous_index`, and how far it has committed."""

    previous_index: int
    previous_term: int
    entries: tuple[LogEntry, ...]
    committed: int


class Appended(Envelope, frozen=True, array_like=True, tag=4):
    """The follower's log equals the leader's up to `match`, and is synced that far."""

    match: int


class Refused(Envelope, frozen=True, array_like=True, tag=5):
    """The follower has no such previous entry; the logs can agree up to the hint at most."""

    previous_index: int
    hint_index: int
    hint_term: int


class Heartbeat(Envelope, frozen=True, array_like=True, tag=6):
    """The leader lives. The round lets it count who has heard this very heartbeat."""

    committed: int
    round: int


class HeartbeatAnswer(Envelope, frozen=True, array_like=True, tag=7):
    """The sender is at this term, and has heard the heartbeat of this round."""

    round: int


class InstallSnapshot(Envelope, frozen=True, array_like=True, tag=8):
    """The state instead of entries that the leader no longer has."""

    snapshot: Snapshot


class TakeOver(Envelope, frozen=True, array_like=True, tag=9):
    """The leader asks the receiver to stand for election at once."""


Message = (
    RequestVote
    | Vote
    | Append
    | Appended
    | Refused
    | Heartbeat
    | HeartbeatAnswer
    | InstallSnapshot
    | TakeOver
)

FromLeader = Append | Heartbeat | InstallSnapshot
