"""Batches that run in another process, as those of Spark Connect do: they leave notes behind.

Spark Connect carries the function of a batch to its server, and brings nothing back but the text
of an error. So what became of a batch is noted beside the checkpoint, for whoever runs the flow.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from pydanube.pipelines.batches import BatchDone, BatchWork
from pydanube.pipelines.errors import StopAsked
from pydanube.pipelines.flow_files import FlowFiles
from pydanube.pipelines.spark_errors import is_hopeless, words_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEPT_MAX = 100


class BatchNote(Struct, frozen=True, kw_only=True):
    """What became of one attempt at a batch."""

    attempt: int
    """Counts from 1 since the flow was started."""
    done: "RemoteDone | None" = None
    error: str | None = None
    hopeless: bool = False
    """Whether starting again cannot help."""
    stopped: bool = False
    """It did not begin, because the flow is to stop."""


class RemoteDone(Struct, frozen=True, kw_only=True):
    """A `BatchDone` in JSON, whose keys are text."""

    done: BatchDone
    counts: list[tuple[str, str, int]]

    def restored(self) -> BatchDone:
        """Return it as it was."""
        counts = {(name, action): number for name, action, number in self.counts}
        return msgspec.structs.replace(self.done, counts=counts)


class RemoteFailure(Exception):
    """What ended a batch elsewhere; its words are those of the error there."""

    def __init__(self, words: str, *, hopeless: bool) -> None:
        super().__init__(words)
        self.hopeless = hopeless


class RemoteBatches:
    """What `foreachBatch` is given: it can be carried to another process."""

    def __init__(
        self,
        work: BatchWork,
        files: FlowFiles,
        around: "Callable[[BatchWork, DataFrame, int], BatchDone]",
    ) -> None:
        self._work = work
        self._files = files
        self._around = around

    def __call__(self, batch: "DataFrame", number: int) -> None:
        """Carry out one batch, and note what became of it."""
        if self._files.asked_to_stop() is not None:
            self._note(stopped=True)
            raise StopAsked
        try:
            done = self._around(self._work, batch, number)
        except Exception as error:
            self._note(error=words_of(error), hopeless=is_hopeless(error))
            raise
        counts = [(name, action, count) for (name, action), count in done.counts.items()]
        self._note(done=RemoteDone(done=msgspec.structs.replace(done, counts={}), counts=counts))

    def _note(
        self,
        *,
        done: RemoteDone | None = None,
        error: str | None = None,
        hopeless: bool = False,
        stopped: bool = False,
    ) -> None:
        before = notes_of(self._files)
        attempt = before[-1].attempt + 1 if before else 1
        note = BatchNote(
            attempt=attempt, done=done, error=error, hopeless=hopeless, stopped=stopped
        )
        kept = [*before, note][-KEPT_MAX:]
        self._files.note_batches(msgspec.json.encode(kept))


def notes_of(files: FlowFiles) -> list[BatchNote]:
    """Return what batches have noted since the flow was started, the newest last."""
    found = files.batch_notes()
    return [] if found is None else msgspec.json.decode(found, type=list[BatchNote])
