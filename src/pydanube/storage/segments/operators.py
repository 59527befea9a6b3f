"""Operators of OpenDAL: how they are built, and what their errors mean."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from pydanube.storage.errors import StoreProblem

if TYPE_CHECKING:
    from opendal import Operator


class Patience(Struct, frozen=True, kw_only=True):
    """How long one call may take, and how often it is repeated before it has failed."""

    answer_seconds: float = 15.0
    transfer_seconds: float = 60.0
    retries: int = 3
    first_delay_seconds: float = 0.2
    last_delay_seconds: float = 5.0

    @property
    def call_seconds_max(self) -> float:
        """How long a call may take with all its repetitions."""
        once = self.answer_seconds + self.transfer_seconds + self.last_delay_seconds
        return once * (self.retries + 1)


def build_operator(scheme: str, options: Mapping[str, str], patience: Patience) -> "Operator":
    """Return an operator that blocks, for the process that built it alone."""
    from opendal import Operator
    from opendal.layers import RetryLayer, TimeoutLayer

    timeout = TimeoutLayer(patience.answer_seconds, patience.transfer_seconds)
    retry = RetryLayer(
        max_times=patience.retries,
        factor=2.0,
        jitter=True,
        max_delay=patience.last_delay_seconds,
        min_delay=patience.first_delay_seconds,
    )
    # The retries lie outside: each of them has its own time.
    return Operator(scheme, **options).layer(timeout).layer(retry)


def operator_errors() -> tuple[type[Exception], ...]:
    """Return what OpenDAL raises: kinds without a common base, and OSError now and then."""
    from opendal import exceptions

    kinds = (getattr(exceptions, name) for name in dir(exceptions) if not name.startswith("_"))
    return (*(kind for kind in kinds if issubclass(kind, Exception)), OSError)


def problem_of(error: Exception) -> StoreProblem:
    """Tell what an error of OpenDAL means for an operator."""
    from opendal import exceptions

    text = str(error)
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return StoreProblem.PLACE
    if isinstance(error, exceptions.PermissionDenied):
        return StoreProblem.CREDENTIALS
    if isinstance(error, exceptions.RateLimited):
        return StoreProblem.THROTTLED
    if isinstance(error, exceptions.NotFound):
        # Reads of single objects never come here: what is missing is the place itself.
        return StoreProblem.PLACE
    if isinstance(error, exceptions.ConfigInvalid):
        return StoreProblem.SETTINGS
    # The rest has no kind of its own; its text is that of the HTTP client or of the service.
    lowered = text.lower()
    for words, problem in _BY_TEXT:
        if any(word in lowered for word in words):
            return problem
    return StoreProblem.OTHER


_BY_TEXT = (
    (
        ("signing credential", "signing http request", "status: 401", "status: 403"),
        StoreProblem.CREDENTIALS,
    ),
    (("(connect)", "dns error", "connection refused"), StoreProblem.UNREACHABLE),
    (("slowdown", "toomanyrequests", "serverbusy", "status: 429"), StoreProblem.THROTTLED),
    (("timeout", "timed out"), StoreProblem.TIMEOUT),
    (("error sending request", "connection reset", "send http request"), StoreProblem.UNREACHABLE),
)


def first_words(error: Exception) -> str:
    """Return what an error says, without addresses of code and without headers of answers."""
    text = str(error)
    first = text.partition("\n")[0]
    source = text.partition("\nSource:\n")[2].partition("\n\n")[0].strip()
    return f"{first}: {source}" if source else first
