"""What becomes of the process of a broker that cannot write."""

from collections.abc import Callable

from msgspec import Struct

from pydanube.observability.logging import get_logger
from pydanube.runtime.process import begin_anew, end_at_once

EXIT_CODE = 74
"""`EX_IOERR` of sysexits.h: a write failed, or did not end. Whoever supervises starts it again."""

_log = get_logger(__name__)


class GaveUp(Struct, frozen=True, kw_only=True):
    """A broker serves nothing any more: a part of its disk failed, or hangs."""

    why: str
    hangs: bool
    """Whether a write is still under way, for which whoever closes in order would wait."""
    begins_anew: bool
    """Whether the process itself starts the broker again, in recovery."""


def end_process(
    gave_up: GaveUp,
    *,
    begin: Callable[[], None] = begin_anew,
    end: Callable[[int], None] = end_at_once,
) -> None:
    """End this process without waiting for anything that hangs, or begin its program anew.

    The system ends all its threads first, also one that waits for a disk, so that nothing of the
    old process is written once the new one reads. That is why recovery is not tried inside.
    """
    if gave_up.begins_anew:
        _log.warning("starting again, in recovery")
        begin()
    _log.warning("ending; start the broker again, it recovers", exit_code=EXIT_CODE)
    end(EXIT_CODE)
