"""DuckDB, Polars and pyarrow read a topic's files as they are, from a folder and from S3."""

import asyncio
from collections.abc import Iterator
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pytest

import pydanube
from pydanube.storage.config import Durable
from tests.support.object_store_servers import seaweedfs

COUNT = 2_000
SETTINGS = {
    "bootstrap_namespaces": ["shop"],
    "storage.segments.seal_bytes": 64 * 1024,
    "storage.tail_cache_bytes_max": 0,
}
EXPECTED = [
    {
        "offset": number,
        "payload": b"order %d" % number * 20,
        "routing_key": None if number % 4 == 0 else f"table-{number % 4}",
        "attributes": {"n": str(number)},
    }
    for number in range(COUNT)
]


async def publish(url: str) -> None:
    async with pydanube.connect(url) as client, client.producer("/shop/orders") as producer:
        for low in range(0, COUNT, 200):
            rows = EXPECTED[low : low + 200]
            await producer.send_batch(
                [{k: v for k, v in row.items() if k != "offset"} for row in rows]
            )


def filled(settings: dict[str, Any]) -> None:
    """Fill a topic and stop, which leaves everything in segments."""
    with pydanube.Broker(settings={**SETTINGS, **settings}) as broker:
        asyncio.run(publish(broker.url))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("share")
    filled({"storage.mode": "shared_fs", "storage.durable.root": str(root)})
    (topic,) = (root / "shop" / "orders").iterdir()
    assert len(list(topic.glob("*.parquet"))) > 1
    return str(topic)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Durable]:
    with seaweedfs(tmp_path_factory.mktemp("s3")) as durable:
        given = {
            "root": durable.root,
            "endpoint": durable.endpoint,
            "access_key": durable.access_key,
            "secret_key": durable.secret_key,
        }
        settings = {f"storage.durable.{name}": value for name, value in given.items()}
        filled({"storage.mode": "object_store", **settings})
        yield durable


def check_rows(rows: pa.Table) -> None:
    rows = rows.sort_by("offset")
    assert rows["offset"].to_pylist() == list(range(COUNT))
    for name in ("payload", "routing_key"):
        assert rows[name].to_pylist() == [row[name] for row in EXPECTED]
    assert set(rows["topic"].to_pylist()) == {"/shop/orders"}
    assert set(rows["partition"].to_pylist()) == {0}


class TestFolder:
    def test_duckdb_reads_every_column(self, folder: str) -> None:
        rows = duckdb.sql(f"SELECT * FROM '{folder}/*.parquet'").to_arrow_table()
        check_rows(rows)
        found = duckdb.sql(
            f"SELECT \"offset\", attributes['n'] FROM '{folder}/*.parquet' ORDER BY 1"
        ).fetchall()
        assert [value for _, value in found] == [str(number) for number in range(COUNT)]

    def test_duckdb_filters_and_groups(self, folder: str) -> None:
        found = duckdb.sql(
            f"SELECT routing_key, count(*) FROM '{folder}/*.parquet' "
            'WHERE "offset" BETWEEN 100 AND 199 GROUP BY 1 ORDER BY 1 NULLS FIRST'
        ).fetchall()
        assert found == [(None, 25), ("table-1", 25), ("table-2", 25), ("table-3", 25)]

    def test_duckdb_sees_times_in_utc(self, folder: str) -> None:
        (kind,) = duckdb.sql(
            f"SELECT DISTINCT typeof(publish_time) FROM '{folder}/*.parquet'"
        ).fetchall()
        assert kind == ("TIMESTAMP WITH TIME ZONE",)

    def test_polars_reads_every_column(self, folder: str) -> None:
        frame = polars.scan_parquet(f"{folder}/*.parquet").collect()
        check_rows(
            frame.select("topic", "partition", "offset", "payload", "routing_key").to_arrow()
        )
        assert frame.schema["publish_time"] == polars.Datetime("ms", "UTC")
        assert frame.sort("offset")["attributes"][7] == {"n": "7"}

    def test_polars_filters_lazily(self, folder: str) -> None:
        scan = polars.scan_parquet(f"{folder}/*.parquet").filter(polars.col("offset") >= COUNT - 5)
        assert sorted(scan.collect()["offset"]) == list(range(COUNT - 5, COUNT))


class TestBucket:
    def test_polars_reads_it_directly(self, bucket: Durable) -> None:
        assert bucket.endpoint is not None
        frame = polars.read_parquet(
            f"{bucket.root}/shop/orders/*/*.parquet",
            storage_options={
                "aws_access_key_id": "key",
                "aws_secret_access_key": "secret",
                "aws_region": "us-east-1",
                "aws_endpoint_url": bucket.endpoint,
                "aws_allow_http": "true",
            },
        )
        check_rows(
            frame.select("topic", "partition", "offset", "payload", "routing_key").to_arrow()
        )

    def test_pyarrow_reads_it_directly_and_duckdb_through_it(self, bucket: Durable) -> None:
        assert bucket.endpoint is not None
        assert bucket.root is not None
        files = pyarrow.fs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            region="us-east-1",
            scheme="http",
            endpoint_override=bucket.endpoint.removeprefix("http://"),
        )
        place = bucket.root.removeprefix("s3://") + "/shop/orders"
        orders = pyarrow.dataset.dataset(place, filesystem=files, format="parquet")
        check_rows(orders.to_table())
        some = duckdb.from_arrow(orders.scanner(filter=pa.compute.field("offset") < 10))
        assert some.aggregate('count(*), max("offset")').fetchall() == [(10, 9)]
