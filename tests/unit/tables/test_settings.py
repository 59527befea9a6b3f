"""What is said about a table's setting that changes."""

from msgspec import structs

from pydanube.tables.settings import TableSetting, changes_between

PLAIN = TableSetting(format="iceberg", table="lake.orders", catalog="lake")


def test_a_setting_that_stays_the_same_has_no_changes() -> None:
    assert changes_between(PLAIN, structs.replace(PLAIN)) == []


def test_each_change_is_named_with_what_was_and_what_will_be() -> None:
    other = structs.replace(
        PLAIN,
        mode="upsert",
        key=("id", "region"),
        partition_by="day(publish_time)",
        starts={"/default/orders": 7},
    )
    assert changes_between(PLAIN, other) == [
        "partition_by: none -> day(publish_time)",
        "mode: append -> upsert",
        "key: none -> id, region",
        "starts: none -> {'/default/orders': 7}",
    ]
    assert changes_between(other, PLAIN)[2] == "key: id, region -> none"
