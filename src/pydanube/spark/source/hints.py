"""Finds, for the pieces of a batch, the segments that tasks may open themselves."""

from collections.abc import Sequence

from pydanube.errors import AccessDenied, DanubeError, InvalidRequest
from pydanube.spark.options import ReadOptions
from pydanube.spark.source.planning import Piece
from pydanube.spark.source.reading import PieceTask, hints_within
from pydanube.spark.source.segment_files import SegmentFiles, directory_of
from pydanube.spark.source.topics import Topics
from pydanube.storage.config import Durable
from pydanube.wire.flight.blocking import Plan

DIRECT_BYTES_MIN = 4 * 1024 * 1024
"""Below it, asking where rows lie costs more than having them sent."""


def plan_tasks(
    options: ReadOptions, topics: Topics, pieces: Sequence[Piece], row_bytes: dict[str, int]
) -> list[PieceTask]:
    """Return one task per piece, in their order, with what is known about where it lies."""
    size = sum(piece.rows * row_bytes.get(piece.topic, 1) for piece in pieces)
    access = options.segment_access
    if access == "broker" or not pieces or (access == "auto" and size < DIRECT_BYTES_MIN):
        return [PieceTask(piece=piece) for piece in pieces]
    try:
        plans = topics.segments_between(_ranges(pieces))
    except DanubeError:
        # Tasks find out themselves what is wrong, with their own range at hand.
        return [PieceTask(piece=piece) for piece in pieces]
    store = choose_store(options, plans)
    if store is None:
        return [PieceTask(piece=piece) for piece in pieces]
    return [
        PieceTask(piece=piece, hints=hints_within(piece, plans), store=store) for piece in pieces
    ]


def choose_store(options: ReadOptions, plans: Sequence[Plan]) -> Durable | None:
    """Return the store to open segments in; None if they cannot be opened from here."""
    keys = [piece.segment for plan in plans for piece in plan.pieces if piece.segment]
    store = options.store
    if store is None:
        told = next((plan.notes.store for plan in plans if plan.notes.store), None)
        store = Durable(root=told) if told is not None else None
        if store is not None and directory_of(store) is None:
            store = None  # Credentials for a bucket are given on purpose, or not at all.
    if options.segment_access == "direct" and store is None:
        raise InvalidRequest(
            "option segmentAccess is direct, and the segments lie in an object store: give option "
            "store.root and its credentials, named as in the broker's storage.durable"
        )
    if store is None or not keys:
        return None
    try:
        SegmentFiles(store).try_open(keys[-1])
    except (AccessDenied, InvalidRequest):
        if options.store is not None:
            raise  # Credentials were given on purpose: not to use them would hide the mistake.
        return None
    except DanubeError as error:
        if options.segment_access == "direct":
            raise InvalidRequest(
                f"option segmentAccess is direct, and segment {keys[-1]} cannot be opened in "
                f"{store.root}: {error}. Check the options store.*, or let the broker read: auto"
            ) from error
        return None
    return store


def _ranges(pieces: Sequence[Piece]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for piece in pieces:
        low, high = found.get(piece.topic, (piece.start, piece.end))
        found[piece.topic] = (min(low, piece.start), max(high, piece.end))
    return found
