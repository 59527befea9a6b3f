import pytest

from pydanube.client.routing import PartitionRouter


def test_messages_without_a_key_go_to_each_partition_in_turn_from_the_first() -> None:
    router = PartitionRouter(3)
    assert [router.pick(None) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


# The published vectors: every Danube client must send these keys to these partitions.
@pytest.mark.parametrize(
    ("key", "of_three", "of_two"),
    [
        ("", 2, 1),
        ("a", 1, 0),
        ("order-123", 0, 0),
        ("user-a", 0, 0),
        ("user-c", 2, 0),
        ("keyA", 1, 1),
        ("keyB", 2, 0),
    ],
)
def test_a_key_goes_where_every_other_client_sends_it(key: str, of_three: int, of_two: int) -> None:
    assert PartitionRouter(3).pick(key) == of_three
    assert PartitionRouter(2).pick(key) == of_two


def test_messages_with_a_key_leave_the_turn_of_the_others_untouched() -> None:
    router = PartitionRouter(3)
    assert [router.pick(key) for key in (None, "user-c", None, "user-c", None)] == [0, 2, 1, 2, 2]
