import pytest

from pydanube.dispatch.globs import Glob
from pydanube.dispatch.hash_ring import HashRing
from pydanube.dispatch.key_owners import KeyMember, KeyOwners
from pydanube.model.hashing import ring_hash
from pydanube.model.ids import ConsumerId


def member(number: int, *filters: str) -> KeyMember:
    return KeyMember(
        ConsumerId(number), credit=1, connected=True, filters=tuple(map(Glob, filters))
    )


def owner_of(owners: KeyOwners, key: str) -> int | None:
    ownership = owners.use(key)
    owner = owners.owner(ownership)
    owners.release(ownership)
    return owner.id if owner is not None else None


def among(*members: KeyMember, remembered_max: int = 100) -> KeyOwners:
    owners = KeyOwners(remembered_max)
    for one in members:
        owners.enter(one)
    return owners


@pytest.mark.parametrize("count", range(4, 11))
@pytest.mark.parametrize("first_id", [1, 77, 123_456_789])
def test_two_consumers_are_both_used_for_a_handful_of_keys(count: int, first_id: int) -> None:
    owners = among(member(first_id), member(first_id + 1))
    loads = [owner_of(owners, f"key-{number}") for number in range(count)]
    assert abs(loads.count(first_id) - loads.count(first_id + 1)) <= 1


def test_a_key_stays_with_its_owner_while_that_one_is_present() -> None:
    owners = among(member(1), member(2))
    before = [owner_of(owners, key) for key in "abcdef"]
    assert [owner_of(owners, key) for key in "abcdef"] == before


def test_the_keys_of_one_who_exits_go_to_the_others() -> None:
    gone = member(1)
    owners = among(gone, member(2), member(3))
    for key in "abcdef":
        owner_of(owners, key)
    owners.exit(gone)
    assert {owner_of(owners, key) for key in "abcdef"} == {2, 3}
    assert gone.key_count == 0


def test_keys_move_to_a_newcomer_until_loads_are_even_and_then_stay() -> None:
    owners = among(member(1))
    assert {owner_of(owners, key) for key in "abcdef"} == {1}
    owners.enter(member(2))
    after = [owner_of(owners, key) for key in "abcdef"]
    assert after.count(2) == 3
    assert [owner_of(owners, key) for key in "abcdef"] == after


def test_a_newcomer_without_room_takes_no_keys() -> None:
    owners = among(member(1))
    owner_of(owners, "a")
    owner_of(owners, "b")
    newcomer = member(2)
    newcomer.credit = 0
    owners.enter(newcomer)
    assert {owner_of(owners, key) for key in "abc"} == {1}


def test_only_those_who_want_a_key_can_own_it() -> None:
    owners = among(member(1, "a*"), member(2, "b*", "c"))
    assert owner_of(owners, "abc") == 1
    assert owner_of(owners, "c") == 2
    assert owner_of(owners, "d") is None


def test_memory_is_bounded_and_keys_in_use_are_never_forgotten() -> None:
    first, second = member(1), member(2)
    owners = among(first, second, remembered_max=10)
    used = owners.use("used")
    owner = owners.owner(used)
    for number in range(1_000):
        owner_of(owners, f"key-{number}")
    assert first.key_count + second.key_count == 11
    assert owners.use("used") is used
    assert owners.owner(used) is owner


def test_nobody_remembers_a_key_that_nobody_wants() -> None:
    owners = among(member(1, "a"))
    for number in range(100):
        assert owner_of(owners, f"b{number}") is None
    assert not owners._keys


def test_the_ring_gives_a_key_to_the_first_node_at_or_after_it() -> None:
    ring = HashRing()
    ring.add(ConsumerId(7))
    ring.add(ConsumerId(8))
    nodes = sorted((ring_hash(f"{number}-{v}"), number) for number in (7, 8) for v in range(100))
    for key in ("a", "user-a", "order-123", "", "keyB"):
        after = [number for place, number in nodes if place >= ring_hash(key)]
        assert ring.owner(key, {7, 8}) == (after or [nodes[0][1]])[0]
        assert ring.owner(key, {8}) == 8
        assert ring.owner(key, set()) is None
    ring.remove(ConsumerId(7))
    assert ring.owner("a", {7}) is None
