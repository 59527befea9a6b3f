"""Tells whether a history of one register could have happened one operation at a time."""

from dataclasses import dataclass
from math import inf

STATES_MAX = 20_000
"""Of a search; a history that needs more is undecided, which is no proof of anything."""

READ, WRITE, SWAP = "read", "write", "swap"


@dataclass
class Operation:
    """One call. A call whose outcome nobody knows has no end, and may have happened or not.

    A read's value is what it returned; a swap writes `value` if the register holds `expected`,
    and `happened` says whether it did.
    """

    kind: str
    value: object
    began: float
    ended: float = inf
    expected: object = None
    happened: bool = True

    @property
    def is_known(self) -> bool:
        return self.ended != inf


class Undecided(Exception):
    """The search was given up: the history may be linearizable or not."""


def is_linearizable(history: list[Operation], initial: object = None) -> bool:
    """Search for an order in which every known operation takes effect between its ends.

    Raises Undecided if that takes too long.
    """
    operations = sorted(_telling(history), key=lambda one: one.began)
    known = sum(1 << number for number, one in enumerate(operations) if one.is_known)
    seen: set[tuple[int, object]] = set()
    stack: list[tuple[int, object]] = [(0, initial)]
    while stack:
        done, value = stack.pop()
        if done & known == known:
            return True
        if len(seen) > STATES_MAX:
            raise Undecided(f"{len(operations)} operations, {STATES_MAX} states")
        if (done, value) in seen:
            continue
        seen.add((done, value))
        for number in _candidates(operations, done):
            allowed, after = _take_effect(operations[number], value)
            if allowed:
                stack.append((done | 1 << number, after))
    return False


def _telling(history: list[Operation]) -> list[Operation]:
    """Leave out what only makes the search long: writes without an answer that nobody has seen.

    A swap that did not happen may owe that to one of them, so it goes as well where there are any.
    """
    known = [one for one in history if one.is_known]
    unknown = [one for one in history if not one.is_known and one.kind != READ]
    if not unknown:
        return known
    seen = {one.value for one in known if one.kind == READ}
    seen |= {one.expected for one in known if one.kind == SWAP and one.happened}
    told = [one for one in known if one.happened]
    while any(one.value in seen for one in unknown):
        # What led to something that was seen was seen by it.
        told += [one for one in unknown if one.value in seen]
        unknown = [one for one in unknown if one not in told]
        seen |= {one.expected for one in told if one.kind == SWAP}
    return told


def _candidates(operations: list[Operation], done: int) -> list[int]:
    """Return what may take effect next: nothing that began after another one had ended."""
    found = []
    horizon = inf
    number = (~done & (done + 1)).bit_length() - 1
    while number < len(operations) and operations[number].began <= horizon:
        if not done >> number & 1:
            found.append(number)
            horizon = min(horizon, operations[number].ended)
        number += 1
    return [number for number in found if operations[number].began <= horizon]


def _take_effect(operation: Operation, value: object) -> tuple[bool, object]:
    if operation.kind == READ:
        return operation.value == value, value
    if operation.kind == WRITE:
        return True, operation.value
    matches = value == operation.expected
    if not operation.is_known:
        return True, operation.value if matches else value
    return matches == operation.happened, operation.value if matches else value
