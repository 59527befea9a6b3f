"""Tasks that read and join segments right in an object store: a real S3, with signatures."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from opendal import Operator
from pyspark.errors import PySparkException

from pydanube.errors import AccessDenied, Corruption, DanubeError, InvalidRequest
from pydanube.spark import compact, history
from pydanube.spark.source import hints
from pydanube.storage.config import Durable
from pydanube.storage.segments.location import store_service
from pydanube.testing.broker import Broker
from tests.support.object_store_servers import seaweedfs
from tests.support.spark_readers import reader, rows_of
from tests.support.spark_topics import Topics, check_rows, small_broker


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Durable]:
    with seaweedfs(tmp_path_factory.mktemp("s3")) as durable:
        yield durable


@pytest.fixture(scope="module")
def broker(bucket: Durable) -> Iterator[Broker]:
    settings = {f"storage.durable.{name}": value for name, value in given(bucket).items()}
    with small_broker(**{"storage.mode": "object_store", **settings}) as running:
        yield running


@pytest.fixture(autouse=True)
def small_pieces_are_read_directly_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "DIRECT_BYTES_MIN", 0)


@pytest.fixture
def sealed(topics: Topics, topic: str) -> str:
    """Two segments of 700 messages and a tail of 50."""
    for number in range(2):
        topics.publish(topic, range(700 * number, 700 * number + 700))
        topics.wait_sealed(topic)
    topics.publish(topic, range(1400, 1450))
    return topic


def given(bucket: Durable) -> dict[str, str]:
    return {name: value for name, value in msgspec.to_builtins(bucket).items() if value}


def store(bucket: Durable, **other: str) -> dict[str, str]:
    return {f"store.{name}": value for name, value in {**given(bucket), **other}.items()}


def operator(bucket: Durable) -> Operator:
    service = store_service(bucket)
    return Operator(service.scheme, **service.options)


def test_the_broker_is_not_asked_for_what_is_sealed(broker, bucket, sealed, monkeypatch):
    end = {"endingOffsets": f'{{"{sealed}": 1400}}'}
    read = reader(broker, topic=sealed, segmentAccess="direct", **end, **store(bucket))
    planned = read.partitions()
    monkeypatch.setattr(
        "pydanube.wire.flight.blocking.BlockingFlight.get",
        lambda *_: pytest.fail("the broker was asked"),
    )
    check_rows(rows_of(read, planned), range(1400))


def test_executors_read_the_bucket_and_the_tail(spark, broker, bucket, sealed):
    options = {"url": broker.url, "topic": sealed, "segmentAccess": "direct", **store(bucket)}
    frame = spark.read.format("danube").options(**options, minPartitions="4").load()
    check_rows([row.asDict() for row in frame.collect()], range(1450))
    # Without Hadoop's driver for S3, history comes the same way.
    whole = history(spark, sealed, url=broker.url, segmentAccess="direct", **store(bucket))
    check_rows([row.asDict() for row in whole.collect()], range(1450))


def test_executors_join_segments_in_the_bucket(spark, broker, bucket, sealed, topics):
    before = {key for _, _, key in topics.segments(sealed) if key is not None}
    with pytest.raises(InvalidRequest, match=r"give option store\.root"):
        compact(spark, sealed, url=broker.url)
    with pytest.raises(DanubeError, match="secret_key"):
        compact(spark, sealed, url=broker.url, **store(bucket, secret_key="wrong"))
    done = compact(spark, sealed, url=broker.url, **store(bucket))
    assert (done.refused, done.into) == ([], 1)
    found = [key for _, _, key in topics.segments(sealed) if key is not None]
    assert len(found) < len(before)
    check_rows(rows_of(reader(broker, topic=sealed, **store(bucket))), range(1450))
    directory = found[0].rpartition("/")[0]
    there = {each.path for each in operator(bucket).list(f"{directory}/")} - {f"{directory}/"}
    assert not [each for each in there if "joined-" in each], "something staged was left"
    assert before <= there, "the old ones stay for readers"


def test_without_credentials_the_broker_reads(broker, bucket, sealed):
    check_rows(rows_of(reader(broker, topic=sealed)), range(1450))
    with pytest.raises(InvalidRequest, match=r"give option store\.root and its credentials"):
        reader(broker, topic=sealed, segmentAccess="direct").partitions()


@pytest.mark.parametrize("access", ["auto", "direct"])
def test_wrong_credentials_are_one_error_that_names_the_options(broker, bucket, sealed, access):
    options = store(bucket, secret_key="wrong")
    with pytest.raises(AccessDenied, match=r"check store\.access_key, secret_key"):
        reader(broker, topic=sealed, segmentAccess=access, **options).partitions()


def test_a_wrong_bucket_or_endpoint_is_named(broker, bucket, sealed):
    for other in ({"root": "s3://nowhere/danube"}, {"endpoint": "http://127.0.0.1:1"}):
        options = store(bucket, **other)
        with pytest.raises(InvalidRequest, match=next(iter(other.values()))):
            reader(broker, topic=sealed, segmentAccess="direct", **options).partitions()
        # Where it is not insisted on, the broker reads.
        check_rows(rows_of(reader(broker, topic=sealed, **options)), range(1450))


def lose_first_segment(topics: Topics, bucket: Durable, topic: str) -> str:
    key = topics.segments(topic)[0][2]
    assert key is not None
    operator(bucket).delete(key)
    return key


def test_a_lost_segment_fails_the_job_and_is_named(spark, broker, topics, bucket, sealed):
    lost = lose_first_segment(topics, bucket, sealed)
    options: dict[str, Any] = {"topic": sealed, "segmentAccess": "direct", **store(bucket)}
    with pytest.raises(Corruption, match="Restore the object from a copy") as refused:
        rows_of(reader(broker, **options))
    assert lost in str(refused.value)
    frame = spark.read.format("danube").options(url=broker.url, **options).load()
    with pytest.raises(PySparkException, match=lost):
        frame.collect()


def test_a_segment_that_was_cut_short_is_never_taken_for_whole(broker, topics, bucket, sealed):
    read = reader(broker, topic=sealed, segmentAccess="direct", **store(bucket))
    planned = read.partitions()
    key = topics.segments(sealed)[0][2]
    assert key is not None
    where = operator(bucket)
    where.write(key, bytes(where.read(key))[:-100])
    with pytest.raises(Corruption, match="is damaged"):
        rows_of(read, planned)
