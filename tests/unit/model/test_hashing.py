import pytest

from pydanube.model.hashing import fnv1a_64, ring_hash
from pydanube.model.ids import stable_consumer_id, stable_producer_id


@pytest.mark.parametrize(
    ("key", "fnv", "ring"),
    [
        ("", 0xCBF29CE484222325, 0xC610FF71),
        ("a", 0xAF63DC4C8601EC8C, 0x767D5927),
        ("order-123", 0x1B96F9C28B5D5ABA, 0xCC728681),
        ("user-a", 0xF84B52AA7549C3E4, 0xCA05D817),
        ("user-c", 0xF84B54AA7549C74A, 0xFA492B92),
        ("keyA", 0x581995D75CBD55F7, 0x681B7F8D),
        ("keyB", 0x581996D75CBD57AA, 0x8E0BDC9F),
    ],
)
def test_hashes_are_those_of_every_client(key: str, fnv: int, ring: int) -> None:
    assert fnv1a_64(key) == fnv
    assert ring_hash(key) == ring


def test_ids_stay_the_same_from_release_to_release() -> None:
    assert stable_producer_id("/default/orders", "p") == 1686154099013889
    assert stable_consumer_id("/default/orders", "sub", "c") == 7627122503663670


def test_ids_fit_clients_that_read_them_signed_or_as_doubles() -> None:
    ids = {stable_producer_id("/default/orders", f"p{n}") for n in range(2_000)}
    assert len(ids) == 2_000
    assert all(0 < each < 2**53 for each in ids)


def test_names_do_not_run_together() -> None:
    assert stable_consumer_id("/a/b", "c", "d") != stable_consumer_id("/a/b", "cd", "")
    assert stable_consumer_id("/a/b", "c", "d", 0) != stable_consumer_id("/a/b", "c", "d", 1)
