"""What Raft nodes ask of each other over the wire: the paths, the bytes, and the errors."""

from typing import TypeVar

import msgspec
from msgspec import Struct

from pydanube.errors import (
    Conflict,
    DanubeError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from pydanube.metadata.raft.membership import Membership
from pydanube.metadata.raft.messages import Message
from pydanube.metadata.state_machine import Result
from pydanube.wire.calls import CallRefused, StatusCode

MESSAGES = "/pydanube.Raft/Messages"
SNAPSHOT = "/pydanube.Raft/Snapshot"
NODE_INFO = "/pydanube.Raft/NodeInfo"
WRITE = "/pydanube.Raft/Write"
READ_INDEX = "/pydanube.Raft/ReadIndex"
CHANGE = "/pydanube.Raft/Change"

_Kind = TypeVar("_Kind")


class Envelope(Struct, frozen=True, array_like=True):
    """Every request, and to which cluster its sender belongs."""

    cluster: str
    request: bytes


class Letters(Struct, frozen=True, array_like=True):
    """Messages of one node to another, and where answers find the sender."""

    address: str
    messages: list[Message]


class SnapshotPiece(Struct, frozen=True, array_like=True):
    """A part of an InstallSnapshot; the receiver has it when all pieces have come in order."""

    address: str
    message_term: int
    sender: int
    to: int
    index: int
    term: int
    membership: Membership
    size: int
    start: int
    data: bytes


class NodeInfo(Struct, frozen=True, array_like=True):
    """Who a node is, and what it knows of its cluster."""

    node: int
    address: str
    term: int
    leader: int
    membership: Membership

    @property
    def belongs_to_a_cluster(self) -> bool:
        """Whether a leader has spoken to it, or it has founded a cluster."""
        return self.term > 0


class Writes(Struct, frozen=True, array_like=True):
    """Commands for the leader, in the order in which they were asked for."""

    commands: list[bytes]


class Failure(Struct, frozen=True, tag="failure"):
    """A command that was refused, or whose outcome is not known."""

    code: str
    text: str


class Written(Struct, frozen=True, array_like=True):
    """What became of each command, and how far to apply to see it.

    With a `leader` nothing was done: that node leads (0: nobody known does).
    """

    leader: int | None
    index: int
    outcomes: list[Result | Failure]


class ReadAt(Struct, frozen=True, array_like=True):
    """A read sees everything acknowledged before, once this index is applied."""

    leader: int | None
    index: int


class ChangeMembers(Struct, frozen=True, array_like=True):
    """Add, promote or remove a node, or hand leadership to it."""

    verb: str
    node: int
    address: str


class Changed(Struct, frozen=True, array_like=True):
    """The members after a change; or, with a `leader`, nothing was done."""

    leader: int | None
    membership: Membership | None
    failure: Failure | None


_KINDS: dict[str, type[DanubeError]] = {
    kind.code: kind for kind in (Conflict, InvalidRequest, NotFound, Overloaded, Unavailable)
}


def failure_of(error: DanubeError) -> Failure:
    """Return an error as it crosses the wire."""
    return Failure(error.code if error.code in _KINDS else Unavailable.code, str(error))


def error_of(failure: Failure) -> DanubeError:
    """Return the error that crossed the wire."""
    return _KINDS.get(failure.code, Unavailable)(failure.text)


def encode(call: Struct) -> bytes:
    """Return a request or reply as bytes."""
    return msgspec.msgpack.encode(call)


def envelope(cluster: str, request: bytes) -> bytes:
    """Return a request as it is sent."""
    return msgspec.msgpack.encode(Envelope(cluster, request))


def open_envelope(data: bytes, cluster: str) -> bytes:
    """Return the request; refuse the call if it comes from a node of another cluster."""
    found = decode(data, Envelope)
    if found.cluster != cluster:
        raise CallRefused(
            StatusCode.FAILED_PRECONDITION,
            f"this node belongs to the cluster {cluster!r}, the caller to {found.cluster!r}: see "
            "its meta_store.seed_nodes and cluster_name",
        )
    return found.request


def decode(data: bytes, kind: type[_Kind]) -> _Kind:
    """Return the request or reply these bytes are; refuse the call if they are none."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise CallRefused(
            StatusCode.INVALID_ARGUMENT,
            f"not a {kind.__name__} between PyDanube nodes: {error}",
        ) from error
