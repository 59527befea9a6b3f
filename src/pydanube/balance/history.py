"""What rebalancing has done and why, bounded; the limits on moves are reckoned from it."""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from pydanube.balance.decisions import Decision, Move, Outcome
from pydanube.balance.settings import HOUR_MS
from pydanube.errors import Corruption
from pydanube.model.ids import BrokerId

MOVES_KEPT_MAX = 1_000
DECISIONS_KEPT_MAX = 256


class MoveRecord(Struct, frozen=True, kw_only=True):
    """A move that was tried."""

    number: int
    """One more than that of the move before; with `at_ms` it names the record."""
    at_ms: int
    topic: str
    source: BrokerId
    target: BrokerId
    estimated_load: float
    reason: str
    outcome: Literal["done", "failed"] = "done"
    failure: str = ""


class DecisionRecord(Struct, frozen=True, kw_only=True):
    """What was decided, once or several times in a row."""

    first_ms: int
    last_ms: int
    count: int
    outcome: Outcome
    reason: str
    """Of the last time."""
    coefficient_of_variation: float


class History(Struct, frozen=True, kw_only=True):
    """The past, oldest first. It is never changed; its methods return the next one."""

    moves: tuple[MoveRecord, ...] = ()
    decisions: tuple[DecisionRecord, ...] = ()
    settling: bool = False
    """Whether moves have begun and the cluster has not come to rest since."""
    checked_ms: int | None = None
    """When a scheduled decision was last made."""

    def after_decision(self, decision: Decision, now_ms: int) -> "History":
        """Remember a decision of `decide`; call it once for each, also when nothing moves."""
        if decision.outcome == "not_due":
            return self
        return msgspec.structs.replace(
            self,
            decisions=self._with_decision(decision, now_ms)[-DECISIONS_KEPT_MAX:],
            settling=self._settles_after(decision),
            checked_ms=now_ms,
        )

    def after_move(self, move: Move, now_ms: int, failure: str | None = None) -> "History":
        """Remember a move that was carried out, or that failed; both count for the limits."""
        record = MoveRecord(
            number=self.moves[-1].number + 1 if self.moves else 1,
            at_ms=now_ms,
            topic=move.topic,
            source=move.source,
            target=move.target,
            estimated_load=move.estimated_load,
            reason=move.reason,
            outcome="done" if failure is None else "failed",
            failure=failure or "",
        )
        return msgspec.structs.replace(self, moves=(*self.moves, record)[-MOVES_KEPT_MAX:])

    def moves_since(self, ms: int) -> list[MoveRecord]:
        """Return the moves tried after that instant, by their time."""
        recent = [each for each in self.moves if each.at_ms > ms]
        return sorted(recent, key=lambda each: each.at_ms)  # The clock may have been set back.

    def moves_in_the_hour_before(self, now_ms: int) -> list[MoveRecord]:
        """Return what counts for the hourly limit."""
        return self.moves_since(now_ms - HOUR_MS)

    def _with_decision(self, decision: Decision, now_ms: int) -> tuple[DecisionRecord, ...]:
        first_ms, count, earlier = now_ms, 1, self.decisions
        if decision.outcome != "move" and earlier and earlier[-1].outcome == decision.outcome:
            # The same again is one record, so that quiet days do not push out what happened.
            first_ms, count = earlier[-1].first_ms, earlier[-1].count + 1
            earlier = earlier[:-1]
        record = DecisionRecord(
            first_ms=first_ms,
            last_ms=now_ms,
            count=count,
            outcome=decision.outcome,
            reason=decision.reason,
            coefficient_of_variation=decision.before.coefficient_of_variation,
        )
        return (*earlier, record)

    def _settles_after(self, decision: Decision) -> bool:
        match decision.outcome:
            case "move":
                return True
            case "cooling_down" | "hourly_limit":
                return self.settling
            case _:
                return False


def restored_history(records: Iterable[MoveRecord]) -> History:
    """Return the history of an earlier leader, so that limits hold across a change of leaders."""
    moves = tuple(sorted(records, key=lambda each: (each.number, each.at_ms)))
    return History(moves=moves[-MOVES_KEPT_MAX:])


def surplus_keys(keys: Iterable[str]) -> list[str]:
    """Return which records to delete from the metadata; see `metadata.keys.rebalancing_move`."""
    return sorted(keys)[:-MOVES_KEPT_MAX]


def encode_move(record: MoveRecord) -> bytes:
    """Return a record as the metadata hold it."""
    return msgspec.json.encode(record)


def decode_move(value: bytes) -> MoveRecord:
    """Read what `encode_move` wrote."""
    try:
        return msgspec.json.decode(value, type=MoveRecord)
    except msgspec.DecodeError as error:
        raise Corruption(f"a rebalancing record in the metadata cannot be read: {error}") from None
