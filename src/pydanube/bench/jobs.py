"""What is measured: the same jobs for every system. Pure."""

from typing import Final

from msgspec import Struct

PAYLOAD_BYTES: Final = 1024
WINDOW: Final = 256
LATENCY_RATE: Final = 1_000


class Job(Struct, frozen=True, kw_only=True):
    """One thing to measure, from a server that is up to a figure."""

    name: str
    title: str
    window: int
    """Messages that may be unacknowledged."""
    publishes: bool = True
    """Whether a publisher runs; otherwise what `publish` has left is consumed."""
    consumes: bool = False
    rate: int | None = None
    """Messages a second that are due; None: as many as go through the window."""
    batch_rows: int | None = None
    """Messages that the application hands over at once."""


PUBLISH: Final = Job(name="publish", title="publish", window=WINDOW)
BACKLOG: Final = Job(
    name="backlog", title="consume a backlog", window=WINDOW, publishes=False, consumes=True
)
END_TO_END: Final = Job(name="end_to_end", title="end to end", window=WINDOW, consumes=True)
ONE_IN_FLIGHT: Final = Job(name="one_in_flight", title="one in flight", window=1)
LATENCY: Final = Job(
    name="latency",
    title=f"latency at {LATENCY_RATE:,} msg/s",
    window=WINDOW,
    consumes=True,
    rate=LATENCY_RATE,
)
PUBLISH_BATCHES: Final = Job(
    name="publish_batches",
    title="publish batches of 1,000",
    window=8,
    batch_rows=1_000,
)

JOBS: Final = (PUBLISH, BACKLOG, END_TO_END, ONE_IN_FLIGHT, LATENCY, PUBLISH_BATCHES)
"""In the order of running: `backlog` consumes what `publish` has left behind."""


def job_named(name: str) -> Job:
    """Return the job of that name; KeyError if there is none."""
    return {job.name: job for job in JOBS}[name]
