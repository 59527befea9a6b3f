"""What a majority has."""

from collections.abc import Iterable, Mapping


def agreed(matches: Mapping[int, int], voters: Iterable[int]) -> int:
    """Return the highest index that a majority of the voters has reached."""
    reached = sorted((matches.get(voter, 0) for voter in voters), reverse=True)
    return reached[len(reached) // 2] if reached else 0
