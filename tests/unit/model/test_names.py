import pytest

from pydanube.errors import InvalidRequest
from pydanube.model.names import (
    check_client_name,
    check_namespace_name,
    check_topic_name,
    namespace_of,
    partition_name,
    split_partition,
)


@pytest.mark.parametrize(
    "name", ["/default/orders", "/a/b", "/ns_1/t-2", "/größe/тема", "/default/orders-part-0"]
)
def test_a_topic_name_has_two_parts_of_letters_digits_dashes_and_underscores(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "/", "//", "orders", "default/orders", "x/ns/t", "//t", "/ns/", "/a/b/c", "/a/b.c",
     "/a/b:c", "/a/b c", "/a b/c", "/a/b\n", "/a/\x00", "/" + "n" * 300 + "/t"],
)  # fmt: skip
def test_any_other_topic_name_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "n" * 300])
def test_a_bad_namespace_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_namespace_name(name)


@pytest.mark.parametrize("name", ["", "x" * 257, "tab\there", "line\n"])
def test_a_client_needs_a_printable_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match="consumer name"):
        check_client_name("consumer", name)


def test_clients_choose_their_names_freely() -> None:
    assert check_client_name("consumer", "a/b c:d é") == "a/b c:d é"


def test_the_namespace_is_the_first_part() -> None:
    assert namespace_of("/default/orders") == "default"


def test_partitions_are_told_by_exact_suffix() -> None:
    assert split_partition(partition_name("/default/a", 12)) == ("/default/a", 12)
    for other in ("/default/a", "/default/a-part-", "/default/a-part-01", "/default/a-part-1x"):
        assert split_partition(other) is None
