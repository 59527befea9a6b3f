"""Options of the data source: what they mean, and how a mistake is answered."""

import pytest

from pydanube.errors import InvalidRequest
from pydanube.spark.amounts import read_duration_ms, read_instant_ms, read_size
from pydanube.spark.options import (
    READ_OPTIONS,
    SECURITY_OPTIONS,
    WRITE_OPTIONS,
    Selection,
    read_options,
    write_options,
)

TOPIC = {"topic": "/default/orders"}
NOW_MS = 1_800_000_000_000


def read(streaming: bool = False, **options: str):
    return read_options(options, streaming=streaming, now_ms=NOW_MS)


def write(streaming: bool = False, **options: str):
    return write_options(options, streaming=streaming)


def test_a_topic_is_all_that_is_needed():
    given = read(**TOPIC)
    assert given.selection == Selection(names=("/default/orders",))
    assert given.starting_offsets == "earliest"
    assert given.access.urls == ("http://127.0.0.1:6650",)


def test_a_stream_begins_at_the_latest_offset():
    assert read(streaming=True, **TOPIC).starting_offsets == "latest"


def test_case_does_not_matter():
    given = read(TOPIC="/default/orders", maxrowspertrigger="5", STARTINGOFFSETS="Earliest")
    assert (given.rows_max, given.starting_offsets) == (5, "earliest")


def test_every_option_can_be_given():
    texts = {
        "topic": "/default/a",
        "startingOffsets": '{"/default/a": 3}',
        "endingOffsets": "latest",
        "startingTimestamp": "-10m",
        "endingTimestamp": "2026-11-15T00:00:00Z",
        "subscription": "mirror",
        "holdTtl": "1d",
        "maxBytesPerTrigger": "1g",
        "maxTriggerDelay": "15m",
        "maxBytesPerPartition": "64m",
        "decode": "schema",
        "onDecodeError": "fail",
        "columns": "offset, payload",
        "segmentAccess": "broker",
        "tokenFile": "/secret",
        "url": "http://a:1,http://b:2",
        "tlsCa": "ca",
        "tlsCert": "cert",
        "tlsKey": "key",
    }
    exclusive = {"topics", "topicsPattern", "token", "tokenEnv"}
    for option in (*READ_OPTIONS, *SECURITY_OPTIONS):
        if option.name not in texts and option.name not in exclusive:
            flags = ("holdRetention", "splitPartitions", "failOnDataLoss", "pushdown")
            texts[option.name] = "false" if option.name in flags else "1"
    given = read_options(texts, streaming=False, now_ms=NOW_MS)
    assert given.starting_offsets == {"/default/a": 3}
    assert given.starting_time_ms == NOW_MS - 600_000
    assert given.columns == ("offset", "payload")
    assert given.access.urls == ("http://a:1", "http://b:2")
    assert not given.fail_on_data_loss


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no topic is given"),
        ({"topic": "/default/a", "topics": "/default/b"}, "topic and topics"),
        ({"topic": "orders"}, "option topic: topic name 'orders'"),
        ({**TOPIC, "maxRowPerTrigger": "1"}, "did you mean maxRowsPerTrigger?"),
        ({**TOPIC, "zzz": "1"}, "there is no option zzz"),
        ({"path": "/default/orders"}, "say .option('topic', ...)"),
        ({"owner": "ann", "provider": "danube", **TOPIC}, "use CREATE TEMPORARY VIEW"),
        ({**TOPIC, "maxRowsPerTrigger": "0"}, "option maxRowsPerTrigger: must be at least 1"),
        ({**TOPIC, "maxRowsPerTrigger": "-3"}, "option maxRowsPerTrigger"),
        ({**TOPIC, "failOnDataLoss": "no"}, "neither true nor false"),
        ({**TOPIC, "maxBytesPerTrigger": "lots"}, "write it as 64m"),
        ({**TOPIC, "maxTriggerDelay": "15"}, "no length of time"),
        ({**TOPIC, "startingTimestamp": "yesterday"}, "no time"),
        ({**TOPIC, "startingOffsets": "first"}, "earliest, latest, committed"),
        ({**TOPIC, "startingOffsets": '{"/default/a": -1}'}, "at least 0"),
        ({**TOPIC, "startingOffsets": "committed"}, "option subscription"),
        ({**TOPIC, "onDecodeError": "fail"}, "needs option decode to be schema"),
        ({**TOPIC, "segmentAccess": "both"}, "none of auto, direct, broker"),
        ({**TOPIC, "store.region": "x"}, "store.root"),
        ({**TOPIC, "store.colour": "x"}, "there is no option store.colour"),
        ({**TOPIC, "token": "a", "tokenFile": "b"}, "token and tokenFile"),
        ({**TOPIC, "tlsCert": "a"}, "tlsCert and tlsKey"),
    ],
)
def test_a_mistake_is_named_with_what_to_write_instead(options, words):
    with pytest.raises(InvalidRequest, match=None) as refused:
        read_options(options, streaming=False, now_ms=NOW_MS)
    assert words in str(refused.value)


def test_a_stream_has_no_end_of_its_own():
    with pytest.raises(InvalidRequest, match="endingOffsets is for batch reads"):
        read(streaming=True, endingOffsets="latest", **TOPIC)


def test_offsets_of_a_checkpoint_can_be_given_as_they_are():
    given = read(startingOffsets='{"v": 1, "grid": 8, "next": {"/default/orders": 7}}', **TOPIC)
    assert given.starting_offsets == {"/default/orders": 7}


def test_the_store_has_the_brokers_own_names():
    given = read(**TOPIC, **{"store.root": "s3://b/p", "store.access_key": "k"})
    assert given.store is not None
    assert (given.store.root, given.store.access_key) == ("s3://b/p", "k")


def test_no_secret_is_in_what_is_printed():
    given = read(**TOPIC, token="s3cret", **{"store.root": "s3://b", "store.secret_key": "s3cret"})
    assert "s3cret" not in repr(given)


@pytest.mark.parametrize(
    ("streaming", "options", "words"),
    [
        (True, {"jobId": "x"}, "jobId is for batch writes"),
        (False, {"producer": "x"}, "option producer goes with option epoch"),
        (False, {"producer": "x", "epoch": "1", "jobId": "y"}, "either option jobId"),
        (False, {"epoch": "4294967296", "producer": "x"}, "below 2147483648"),
        (True, {"sequenceColumn": "n"}, "goes with option producerColumn"),
        (True, {"encode": "avro"}, "schemaSubject"),
        (True, {"batchRows": "100000"}, "at most 65536"),
        (True, {"batchBytes": "13m"}, "option batchBytes: must be at most 12m"),
        (True, {"guarantee": "maybe"}, "exactly_once, at_least_once"),
        (True, {"startingOffsets": "latest"}, "there is no option startingOffsets"),
    ],
)
def test_a_mistake_of_a_write_is_named(streaming, options, words):
    with pytest.raises(InvalidRequest) as refused:
        write(streaming, **options)
    assert words in str(refused.value)


def test_every_option_of_a_write_can_be_given():
    texts = {option.name: "1" for option in WRITE_OPTIONS}
    texts |= {"topic": "/default/a", "encode": "json", "guarantee": "at_least_once"}
    texts |= {"order": "sorted", "batchBytes": "1m"}
    del texts["jobId"]
    assert write_options(texts, streaming=False).epoch == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [("64m", 64 << 20), ("1G", 1 << 30), ("12", 12), ("2 kb", 2048), ("1MiB", 1 << 20)],
)
def test_sizes(text, size):
    assert read_size(text) == size


@pytest.mark.parametrize(("text", "ms"), [("7d", 604_800_000), ("1.5s", 1500), ("500ms", 500)])
def test_lengths_of_time(text, ms):
    assert read_duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("123", 123),
        ("-1s", NOW_MS - 1000),
    ],
)
def test_instants(text, ms):
    assert read_instant_ms(text, NOW_MS) == ms
