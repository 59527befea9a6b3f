"""Batches that run in another process: what they do when their flow is to stop."""

from pathlib import Path
from typing import Any, cast

import pytest

from pydanube.pipelines.batches import BatchDone
from pydanube.pipelines.errors import StopAsked
from pydanube.pipelines.flow_files import FlowFiles
from pydanube.pipelines.remote_batches import RemoteBatches, notes_of


@pytest.mark.parametrize("how", ["after the batch", "now"])
def test_no_batch_begins_once_the_flow_is_to_stop(tmp_path: Path, how: Any) -> None:
    files = FlowFiles(str(tmp_path), "p", "lake")
    begun: list[int] = []

    def around(work: Any, batch: Any, number: int) -> BatchDone:
        begun.append(number)
        return BatchDone(rows_out=0, dead_letters=0, counts={})

    batches = RemoteBatches(cast(Any, None), files, around)
    batches(cast(Any, None), 0)
    files.ask_to_stop(how)
    with pytest.raises(StopAsked):
        batches(cast(Any, None), 1)
    assert begun == [0]
    assert [note.stopped for note in notes_of(files)] == [False, True]
