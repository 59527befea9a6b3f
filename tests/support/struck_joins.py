"""A job that joins segments, whose worker is killed around its work; once for all of them."""

import os
import signal
from typing import Any

from pydanube.spark.compacting import JoinJob, JoinTask, StagedRun


class StruckJoins(JoinJob):
    """The first worker dies before it has staged anything, or after it has."""

    def __init__(self, store: Any, tasks: list[JoinTask], moment: str, mark: str) -> None:
        super().__init__(store, tasks)
        self._moment = moment
        self._mark = mark

    def stage(self, task: JoinTask) -> StagedRun:
        self._come_to("before")
        staged = super().stage(task)
        self._come_to("after")
        return staged

    def _come_to(self, moment: str) -> None:
        if moment != self._moment:
            return
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
