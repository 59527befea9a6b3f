"""Stored columns as Spark's rows."""

import pyarrow as pa

from pydanube.model.batch import SCHEMA, Batch
from pydanube.model.message import Message
from pydanube.spark.source.rows import Place, to_rows

KIND = pa.map_(pa.utf8(), pa.utf8())


def test_a_message_without_attributes_has_an_empty_map() -> None:
    given = [None, {"a": "1"}, None]
    stored = Batch.gather(
        [
            Message(payload=b"x", publish_time_ms=1, producer_name="p", attributes=each)
            for each in given
        ]
    ).record_batch()
    assert stored.schema == SCHEMA
    place = Place(topic="/default/orders", partition=0)
    wanted = pa.schema([("offset", pa.int64()), ("attributes", KIND)])
    for count in (1, 3):
        rows = to_rows(stored.slice(0, count), 7, place, wanted)
        assert rows.column("attributes").null_count == 0
        assert rows.to_pylist() == [
            {"offset": 7 + number, "attributes": list((each or {}).items())}
            for number, each in enumerate(given[:count])
        ]
