"""Who a task writes as, and which number each of its rows has. Pure.

A batch that is written again, by a retry, a twin or a restart, has the same producers and the same
numbers, and a broker stores a number once. Numbers grow from batch to batch and may have gaps.
"""

from msgspec import Struct

BATCH_BITS = 32
ROWS_MAX = 2**BATCH_BITS


class TaskIdentity(Struct, frozen=True, kw_only=True):
    """A task of one batch: `owner` is the query or job, `epoch` the batch's number in it."""

    owner: str
    epoch: int
    task: int

    @property
    def producer(self) -> str:
        """The producer's name: the same for the same task of every batch."""
        return f"{self.owner}/{self.task}"

    def sequence(self, row: int) -> int:
        """Return the number of the task's row for one physical topic, counted from 0."""
        assert row < ROWS_MAX, "a task has more rows for one topic than can be numbered"
        return (self.epoch << BATCH_BITS) + row


def stream_owner(query_id: str) -> str:
    """Return the owner of a query's rows; the id lives in the checkpoint."""
    return f"spark/{query_id}"


def job_owner(job_id: str) -> str:
    """Return the owner of a batch job's rows."""
    return f"batch/{job_id}"
