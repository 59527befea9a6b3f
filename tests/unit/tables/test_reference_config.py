"""The reference's configuration file says which topics are tables, or is refused with a reason."""

import pytest

from pydanube.errors import InvalidRequest
from pydanube.tables.reference_config import read_reference_config

FILE = b"""
broker: {address: "http://127.0.0.1:6650"}
storage: {backend: fs, root: /data, output_prefix: iceberg}
catalog: {type: sql, name: lake, properties: {uri: "sqlite:////c.db", warehouse: "file:///w"}}
compaction: {target_parquet_size_mb: 100, max_flush_interval_seconds: 60}
polling: {interval_seconds: 5}
topics:
  - {namespace: default, topic: orders, table_name: orders_raw}
  - {namespace: shop, topic: /shop/pay, table_name: pay,
     compaction: {max_flush_interval_seconds: 10}}
"""
BARE = b"""
broker: {address: "http://127.0.0.1:6650"}
storage: {backend: fs, root: /data, output_prefix: iceberg}
topics: [{namespace: default, topic: orders, table_name: orders_raw}]
"""


def test_each_topic_is_a_table_with_the_references_columns() -> None:
    config = read_reference_config(FILE)
    found = config.settings()
    assert {name: (each.table, each.freshness_ms) for name, each in found.items()} == {
        "/default/orders": ("default.orders_raw", 60_000),
        "/shop/pay": ("shop.pay", 10_000),
    }
    assert {(each.layout, each.format, each.catalog) for each in found.values()} == {
        ("danube-iceberg", "iceberg", "lake")
    }
    assert config.catalogs()["lake"].type == "sql"


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (b"topics:", b"topic:", "unknown field `topic`"),
        (b"backend: fs", b"backend: tape", "Invalid enum value 'tape'"),
        (b"orders, table", b"or/ders, table", "form /namespace/topic"),
        (b"seconds: 60", b"seconds: 86400", "1s to 1h"),
        (b"broker:", b"{", "no file of danube-iceberg"),
    ],
)
def test_what_makes_no_sense_is_refused(before: bytes, after: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        read_reference_config(FILE.replace(before, after)).settings()


@pytest.mark.parametrize(
    ("storage", "properties"),
    [
        (b"backend: fs, root: /data", {"warehouse": "/data/iceberg"}),
        (
            b"backend: s3, root: bucket, options: {region: r, access_key_id: a}",
            {"warehouse": "s3://bucket/iceberg", "s3.region": "r", "s3.access-key-id": "a"},
        ),
        (b"backend: s3, root: s3://bucket/x", {"warehouse": "s3://bucket/x/iceberg"}),
    ],
)
def test_tables_without_a_catalogue_lie_below_the_root_of_the_storage(
    storage: bytes, properties: dict[str, str]
) -> None:
    file = BARE.replace(b"backend: fs, root: /data", storage)
    found = read_reference_config(file).catalogs()["danube_catalog"]
    assert (found.type, found.properties) == ("none", properties)


@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        (b"backend: gcs, root: bucket", "below storage.root, a directory"),
        (b"backend: fs", "below storage.root, a directory"),
        (b"backend: s3, root: b, options: {sse: x}", "storage.options.sse is not known"),
    ],
)
def test_a_place_where_tables_need_a_catalogue_is_refused(storage: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        read_reference_config(BARE.replace(b"backend: fs, root: /data", storage))
