import pytest

from pydanube.spark.sink import writers
from pydanube.spark.sink.task import TaskResult


class WrittenTask:
    """A task whose rows are stored already."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def run(self, batches) -> TaskResult:
        self._events.append("written")
        return TaskResult(rows=1, stored=1, repeated=0)


def test_a_worker_keeps_what_is_loaded_once_its_rows_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    monkeypatch.setattr(writers, "keep_what_is_loaded", lambda: events.append("kept"))
    message = writers._write(WrittenTask(events), iter(()))
    assert events == ["written", "kept"]
    assert message.result == TaskResult(rows=1, stored=1, repeated=0)
