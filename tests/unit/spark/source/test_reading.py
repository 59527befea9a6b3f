import pyarrow as pa
import pytest

from pydanube.spark.options import read_options
from pydanube.spark.source import reading
from pydanube.spark.source.planning import Piece
from pydanube.spark.source.reading import PieceTask, read_task


class OneBatch:
    """A piece whose rows are at hand."""

    def __init__(self, options, task, columns, times) -> None:
        self._rows = pa.record_batch({"payload": pa.array([b"a", b"b"], pa.binary())})

    def rows(self):
        yield 7, self._rows


def test_a_worker_keeps_what_is_loaded_once_its_rows_are_read(monkeypatch: pytest.MonkeyPatch):
    events: list[object] = []
    monkeypatch.setattr(reading, "PieceReader", OneBatch)
    monkeypatch.setattr(reading, "keep_what_is_loaded", lambda: events.append("kept"))
    options = read_options(
        {"topic": "/default/orders"}, streaming=False, now_ms=0, default_url="http://127.0.0.1:1"
    )
    task = PieceTask(piece=Piece(topic="/default/orders", id="id", start=7, end=9))
    schema = pa.schema([("offset", pa.int64()), ("payload", pa.binary())])
    for rows in read_task(options, task, schema):
        events.append(rows.to_pydict())
    assert events == [{"offset": [7, 8], "payload": [b"a", b"b"]}, "kept"]
