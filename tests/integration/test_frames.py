"""Frames of pandas and polars, there and back: every value is what it was."""

import sys
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import pydanube
from pydanube import sync

TOPIC = "/default/orders"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = 1_769_860_800_000
MESSAGES: dict[str, list[Any]] = {
    "payload": [b"tea", b"\x00\xff", b""],
    "routing_key": ["t1", None, "t2"],
    "publish_time": [NOON, NOON + timedelta(milliseconds=1), NOON + timedelta(seconds=1)],
}


def stored(broker: pydanube.Broker, data: object) -> list[dict[str, Any]]:
    """What the broker holds after a batch was sent, by its own Arrow table."""
    with sync.connect(broker.url) as client:
        with client.producer(TOPIC, name="till") as producer:
            producer.send_batch(data)
        rows: list[dict[str, Any]] = client.reader(TOPIC).to_arrow().to_pylist()
        return rows


@pytest.mark.parametrize("library", [pd, pl], ids=["pandas", "polars"])
def test_messages_in_a_frame_are_stored_as_they_are(
    danube_broker: pydanube.Broker, library: Any
) -> None:
    attributes = [{"a": "b"}, {"a": "d"}, None]
    rows = stored(danube_broker, library.DataFrame({**MESSAGES, "attributes": attributes}))
    assert [row["payload"] for row in rows] == MESSAGES["payload"]
    assert [row["routing_key"] for row in rows] == MESSAGES["routing_key"]
    assert [row["publish_time"] - NOON_MS for row in rows] == [0, 1, 1_000]
    assert [row["attributes"] for row in rows] == [[("a", "b")], [("a", "d")], None]
    assert {row["producer_name"] for row in rows} == {"till"}


@pytest.mark.parametrize("library", [pd, pl], ids=["pandas", "polars"])
def test_rows_without_a_payload_become_json(danube_broker: pydanube.Broker, library: Any) -> None:
    frame = library.DataFrame(
        {"item": ["tea", None], "cups": [1, 2], "price": [1.5, None], "day": [date(2026, 1, 2)] * 2}
    )
    assert [row["payload"] for row in stored(danube_broker, frame)] == [
        b'{"item":"tea","cups":1,"price":1.5,"day":"2026-01-02"}',
        b'{"item":null,"cups":2,"price":null,"day":"2026-01-02"}',
    ]


def test_the_row_numbers_of_pandas_are_not_sent_but_a_named_index_is(
    danube_broker: pydanube.Broker,
) -> None:
    frame = pd.DataFrame({"item": ["tea", "milk"], "cups": [1, 2]})
    assert stored(danube_broker, frame[frame.cups > 1])[0]["payload"] == b'{"item":"milk","cups":2}'
    assert (
        stored(danube_broker, frame.set_index("item"))[1]["payload"] == b'{"cups":1,"item":"tea"}'
    )


def test_times_of_pandas_keep_their_nanoseconds_in_json(danube_broker: pydanube.Broker) -> None:
    frame = pd.DataFrame({"at": pd.to_datetime(["2026-01-31T12:00:00.123456789Z"])})
    (row,) = stored(danube_broker, frame)
    assert row["payload"] == b'{"at":"2026-01-31T12:00:00.123456789+00:00"}'


def test_integers_that_pandas_made_floats_of_are_integers_again(
    danube_broker: pydanube.Broker,
) -> None:
    rows = stored(danube_broker, pd.DataFrame({"payload": ["a", "b"], "schema_id": [7, None]}))
    assert [row["schema_id"] for row in rows] == [7, None]
    with pytest.raises(pydanube.InvalidRequest, match="schema_id"):
        stored(danube_broker, pd.DataFrame({"payload": ["a"], "schema_id": [7.5]}))


def test_categories_are_texts(danube_broker: pydanube.Broker) -> None:
    column = pl.Series("payload", ["a", "b", "a"], dtype=pl.Categorical)
    rows = stored(danube_broker, pl.DataFrame([column]))
    assert [row["payload"] for row in rows] == [b"a", b"b", b"a"]
    assert len(stored(danube_broker, pd.DataFrame({"payload": pd.Categorical(["a"])}))) == 4


def test_frames_without_rows_send_nothing(danube_broker: pydanube.Broker) -> None:
    assert stored(danube_broker, pd.DataFrame({"payload": []})) == []
    assert stored(danube_broker, pl.DataFrame({"payload": []})) == []


def test_readers_and_batches_give_the_same_frames(danube_broker: pydanube.Broker) -> None:
    expected = stored(danube_broker, pl.DataFrame(MESSAGES))
    with sync.connect(danube_broker.url) as client:
        reader = client.reader(TOPIC)
        with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
            delivered = next(consumer.batches())
        for source in (reader, next(reader.batches()), delivered):
            table = source.to_arrow()
            assert table.to_pylist() == expected
            assert source.to_polars().to_arrow().cast(table.schema).to_pylist() == expected
            frame = source.to_pandas()
            assert list(frame.columns) == table.column_names
            assert frame["payload"].tolist() == MESSAGES["payload"]
            assert frame["offset"].tolist() == [0, 1, 2]
            assert frame["publish_time"].tolist() == [row["publish_time"] for row in expected]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_that_was_read_can_be_sent(danube_broker: pydanube.Broker, library: str) -> None:
    messages = pa.table({"payload": [b"a", b"b"]}).append_column(
        "attributes", pa.array([[("x", "y")], None], pa.map_(pa.utf8(), pa.utf8()))
    )
    stored(danube_broker, messages)
    with sync.connect(danube_broker.url) as client:
        frame = getattr(client.reader(TOPIC), f"to_{library}")()
        places = ["topic", "offset"]
        plain = frame.drop(columns=places) if library == "pandas" else frame.drop(places)
        first, second, *again = stored(danube_broker, plain)
    assert [row["attributes"] for row in again] == [first["attributes"], second["attributes"]]
    assert [row["payload"] for row in again] == [b"a", b"b"]
    with (
        pytest.raises(pydanube.InvalidRequest, match="column topic is none of a message's"),
    ):
        stored(danube_broker, frame)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_missing_is_named_with_what_to_do(
    danube_broker: pydanube.Broker, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(danube_broker, [b"a"])
    monkeypatch.setitem(sys.modules, library, None)
    with sync.connect(danube_broker.url) as client:
        reader = client.reader(TOPIC)
        for source in (reader, next(reader.batches())):
            with pytest.raises(ModuleNotFoundError, match=f"pip install {library}, or use to_arr"):
                getattr(source, f"to_{library}")()
            assert source.to_arrow().num_rows == 1
