"""How many descriptors the process may have: files and connections share them."""

from typing import Final

try:
    import resource
except ImportError:  # There are no such limits on Windows.
    resource = None  # type: ignore[assignment]  # So that it can be asked for.

DESCRIPTORS_MAX: Final = 1_048_576
"""More are not asked for: some systems have a limit of a thousand million, which costs memory."""


def descriptors_max() -> int | None:
    """Return how many this process may have open; None if nobody counts them."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_descriptors_max() -> int | None:
    """Let this process have as many as it is allowed to allow itself; return how many."""
    if resource is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = DESCRIPTORS_MAX if hard == unlimited else min(hard, DESCRIPTORS_MAX)
    if soft not in (unlimited, wanted) and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft  # The system knows another limit, which it does not tell.
    return descriptors_max()
