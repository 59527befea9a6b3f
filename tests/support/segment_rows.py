"""Messages of every shape, in batches cut anywhere, for tests of segments."""

from collections.abc import Sequence

from pydanube.model.batch import Batch
from pydanube.model.ids import Offset
from pydanube.model.message import Message
from pydanube.runtime.randomness import Randomness
from pydanube.storage.pieces import Piece

_TIMES = (-5, 0, 1_700_000_000_000, 1_700_000_000_001, 2**62)
_KEYS = (None, "", "key", "schlüssel")
_ATTRIBUTES: tuple[dict[str, str] | None, ...] = (None, {"c": ""}, {"a": "b", "": ""})
_SCHEMA_IDS = (None, 0, 1, 2**63, 2**64 - 1)
_SCHEMA_VERSIONS = (None, 0, 2**31, 2**32 - 1)


def any_message(randomness: Randomness, payload_bytes_max: int = 100) -> Message:
    def one_of(values: Sequence[object]) -> object:
        return values[randomness.below(len(values))]

    payload = bytes(randomness.below(256) for _ in range(randomness.below(payload_bytes_max + 1)))
    return Message(
        payload=payload,
        publish_time_ms=one_of(_TIMES),  # type: ignore[arg-type]
        producer_name=f"producer-{randomness.below(3)}",
        routing_key=one_of(_KEYS),  # type: ignore[arg-type]
        attributes=one_of(_ATTRIBUTES),  # type: ignore[arg-type]
        schema_id=one_of(_SCHEMA_IDS),  # type: ignore[arg-type]
        schema_version=one_of(_SCHEMA_VERSIONS),  # type: ignore[arg-type]
    )


def any_messages(randomness: Randomness, count: int) -> list[Message]:
    return [any_message(randomness) for _ in range(count)]


def in_pieces(
    messages: Sequence[Message], base: int, randomness: Randomness, rows_max: int = 50
) -> list[Piece]:
    """The messages as pieces, some of which are slices of larger batches."""
    pieces = []
    at = 0
    while at < len(messages):
        count = 1 + randomness.below(min(rows_max, len(messages) - at))
        before = randomness.below(min(3, at + 1))
        batch = Batch.gather(messages[at - before : at + count])
        pieces.append(Piece(Offset(base + at - before), batch, before, before + count))
        at += count
    return pieces


def messages_in(pieces: Sequence[Piece]) -> list[Message]:
    found: list[Message] = []
    for piece in pieces:
        found += piece.batch.messages(piece.first_row, piece.end_row)
    return found
