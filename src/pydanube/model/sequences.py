"""How producers number what they send, so that what is sent twice is stored once."""

import xxhash
from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.model.ids import Offset, ProducerId

SEQUENCE_MAX = 2**64 - 1


class SequenceRange(Struct, frozen=True, kw_only=True):
    """The first and last number of a batch, counted by its producer on one topic.

    Numbers grow from batch to batch; gaps are allowed.
    """

    producer: str
    first: int
    last: int
    digest: int | None = None
    """Of the rows, as the producer computes it; two batches of one range must have the same."""
    previous: int | None = None
    """The last number of the batch that must be stored before this one.

    Whoever sends a batch before the one before it is answered must name it: if that one is refused
    and this one stored, the first would look as if it had been stored when it is sent again.
    """
    session: int | None = None
    """Tells two lives of a producer apart, each of which counts for itself."""

    @property
    def key(self) -> ProducerId:
        """The number under which a topic remembers these sequences."""
        return sequence_key(self.producer, self.session)


class MessageSequence(Struct, frozen=True):
    """The number of a single message, counted by its producer on one topic."""

    sequence: int
    previous: int | None = None
    """The one that must be stored before it; with it, messages may be under way together."""
    session: int | None = None
    """Tells two lives of a producer apart, each of which counts for itself."""


class Applied(Struct, frozen=True):
    """The batch is stored; `base` is the offset of its first message, None if it has none."""

    base: Offset | None


class AlreadyApplied(Struct, frozen=True):
    """All of the batch was stored before; `base` is where, if the broker still knows."""

    base: Offset | None


class Overlap(Struct, frozen=True):
    """A part of the batch was stored before: send what lies above `last_sequence`."""

    last_sequence: int


Outcome = Applied | AlreadyApplied | Overlap


def check_range(sequences: SequenceRange) -> SequenceRange:
    """Return the range if it is one; refuse it otherwise."""
    if not 0 <= sequences.first <= sequences.last <= SEQUENCE_MAX:
        raise InvalidRequest(
            f"sequences {sequences.first} to {sequences.last} are no range: a batch names its "
            f"first and last sequence, from 0 to {SEQUENCE_MAX}"
        )
    if sequences.digest is not None and not 0 <= sequences.digest <= SEQUENCE_MAX:
        raise InvalidRequest("the digest of a batch is a number of 64 bits")
    if not sequences.producer:
        raise InvalidRequest("sequences belong to a producer; name it")
    return sequences


def sequence_key(producer: str, session: int | None = None) -> ProducerId:
    """Return the number under which a topic remembers a producer's sequences.

    A session is one life of a client: two clients of one name, or one that starts anew, count
    apart from each other.
    """
    # Names hold no NUL, so that a session never looks like a name.
    name = producer if session is None else f"{producer}\0{session}"
    return ProducerId(xxhash.xxh3_64_intdigest(name.encode()))
