import pytest

from pydanube.errors import Corruption
from pydanube.metadata.commands import (
    Command,
    ExpireLeases,
    GrantLease,
    NextId,
    RenewLease,
    RevokeLease,
    Transact,
)
from pydanube.metadata.state_machine import (
    Allotted,
    Applied,
    ConditionFailed,
    LeaseUnknown,
    Result,
    StateMachine,
)
from pydanube.metadata.store import Change, Delete, Entry, Expect, Operation, Put


def transact(*steps: Expect | Operation) -> Transact:
    return Transact(
        tuple(step for step in steps if isinstance(step, Expect)),
        tuple(step for step in steps if not isinstance(step, Expect)),
    )


def apply_all(machine: StateMachine, *commands: Command) -> list[Result]:
    return [machine.apply(command)[0] for command in commands]


def keys_of(machine: StateMachine, prefix: str = "/") -> list[str]:
    return [entry.key for entry in machine.entries_below(prefix)]


def test_a_transaction_is_one_change_with_one_revision():
    machine = StateMachine()
    result, changes = machine.apply(transact(Put("/b", b"2"), Put("/a", b"1")))
    assert result == Applied(1)
    assert changes == [Change("/b", b"2", 1), Change("/a", b"1", 1)]
    assert machine.entries_below("/") == [Entry("/a", b"1", 1), Entry("/b", b"2", 1)]


def test_a_failed_condition_changes_nothing_and_names_the_key():
    machine = StateMachine()
    apply_all(machine, transact(Put("/a", b"1")))
    before = machine.snapshot()
    result, changes = machine.apply(
        transact(Expect("/a", 1), Expect("/b", 7), Put("/a", b"2"), Delete("/a"))
    )
    assert (result, changes) == (ConditionFailed("/b", 7, 0), [])
    assert machine.snapshot() == before


def test_revision_zero_expects_an_absent_key():
    machine = StateMachine()
    create = transact(Expect("/a", 0), Put("/a", b"1"))
    assert apply_all(machine, create, create) == [Applied(1), ConditionFailed("/a", 0, 1)]


def test_deleting_an_absent_key_is_no_change():
    machine = StateMachine()
    assert machine.apply(transact(Delete("/a"))) == (Applied(0), [])


def test_a_delete_and_a_create_give_the_key_a_new_revision():
    machine = StateMachine()
    apply_all(machine, transact(Put("/a", b"1")), transact(Delete("/a")))
    assert machine.get("/a") is None
    apply_all(machine, transact(Put("/a", b"1")))
    assert machine.get("/a") == Entry("/a", b"1", 3)


def test_a_prefix_means_what_lies_below_it_and_nothing_beside_it():
    machine = StateMachine()
    keys = ["/t/t1", "/t/t1/a", "/t/t1/b/c", "/t/t1-", "/t/t1.x/a", "/t/t10/a", "/t/t2", "/u"]
    for key in keys:
        machine.apply(transact(Put(key, b"")))
    assert keys_of(machine, "/t/t1/") == ["/t/t1/a", "/t/t1/b/c"]
    assert keys_of(machine, "/t/") == sorted(keys[:-1])
    assert keys_of(machine, "/") == sorted(keys)


def test_counters_count_from_one_each_for_itself_and_are_no_change():
    machine = StateMachine()
    results = apply_all(machine, NextId("/a"), NextId("/a"), NextId("/b"))
    assert results == [Allotted(1), Allotted(2), Allotted(1)]
    assert machine.revision == 0


def test_an_expired_lease_takes_its_keys_with_it_as_one_change():
    machine = StateMachine()
    apply_all(machine, GrantLease(100, 1_000), transact(Put("/b", b"", 1), Put("/a", b"", 1)))
    assert machine.next_expiry_ms() == 1_100
    assert machine.apply(ExpireLeases(1_099)) == (Applied(1), [])
    result, changes = machine.apply(ExpireLeases(1_100))
    assert (result, changes) == (Applied(2), [Change("/a", None, 2), Change("/b", None, 2)])
    assert (keys_of(machine), machine.lease_count) == ([], 0)
    assert apply_all(machine, RenewLease(1, 1_100)) == [LeaseUnknown(1)]


def test_a_renewed_lease_lives_its_whole_time_again():
    machine = StateMachine()
    apply_all(machine, GrantLease(100, 1_000), transact(Put("/a", b"", 1)), RenewLease(1, 1_050))
    apply_all(machine, ExpireLeases(1_149))
    assert keys_of(machine) == ["/a"]
    apply_all(machine, ExpireLeases(1_150))
    assert keys_of(machine) == []


def test_a_revoked_lease_takes_only_its_own_keys():
    machine = StateMachine()
    apply_all(machine, GrantLease(100, 0), GrantLease(100, 0))
    apply_all(machine, transact(Put("/a", b"", 1), Put("/b", b"", 2), Put("/c", b"")))
    assert apply_all(machine, RevokeLease(1), RevokeLease(1)) == [Applied(2), LeaseUnknown(1)]
    assert keys_of(machine) == ["/b", "/c"]


@pytest.mark.parametrize("rewrite", [Put("/a", b"2"), Put("/a", b"2", 2)])
def test_writing_a_key_anew_frees_it_from_its_former_lease(rewrite: Put):
    machine = StateMachine()
    apply_all(machine, GrantLease(100, 0), GrantLease(500, 0), transact(Put("/a", b"1", 1)))
    apply_all(machine, transact(rewrite), ExpireLeases(100))
    assert keys_of(machine) == ["/a"]


def test_a_key_deleted_and_created_again_is_free_of_its_former_lease():
    machine = StateMachine()
    apply_all(machine, GrantLease(100, 0), transact(Put("/a", b"1", 1)), transact(Delete("/a")))
    apply_all(machine, transact(Put("/a", b"2")), ExpireLeases(100))
    assert keys_of(machine) == ["/a"]


def test_a_write_bound_to_an_unknown_lease_changes_nothing():
    machine = StateMachine()
    result, changes = machine.apply(transact(Put("/a", b""), Put("/b", b"", 9)))
    assert (result, changes, keys_of(machine)) == (LeaseUnknown(9), [], [])


def test_a_clock_behind_the_last_one_shortens_no_lease():
    machine = StateMachine()
    apply_all(machine, GrantLease(100, 1_000), ExpireLeases(1_050), RenewLease(1, 500))
    assert machine.next_expiry_ms() == 1_150


def test_lease_numbers_are_never_given_twice():
    machine = StateMachine()
    assert apply_all(machine, GrantLease(1, 0), RevokeLease(1), GrantLease(1, 0))[-1] == Allotted(2)


def full_machine() -> StateMachine:
    machine = StateMachine()
    apply_all(machine, GrantLease(100, 1_000), GrantLease(7, 1_000), NextId("/n"), NextId("/m"))
    apply_all(machine, transact(Put("/b/ü", b"\xff", 2), Put("/a", b"1", 1), Put("/c", b"")))
    return machine


def test_a_restored_machine_goes_on_exactly_like_the_original():
    original, copy = full_machine(), StateMachine()
    apply_all(copy, transact(Put("/old", b"")), NextId("/old"), GrantLease(1, 0))
    copy.restore(original.snapshot())
    for command in (
        transact(Expect("/a", 1), Put("/a", b"2")),
        NextId("/n"),
        GrantLease(5, 0),
        ExpireLeases(1_007),
        ExpireLeases(2_000),
    ):
        assert copy.apply(command) == original.apply(command)
    assert copy.snapshot() == original.snapshot()


def test_equal_states_have_equal_snapshots_whatever_their_history():
    one, other = StateMachine(), StateMachine()
    apply_all(one, GrantLease(1, 0), NextId("/x"), NextId("/y"))
    apply_all(other, GrantLease(1, 0), NextId("/y"), NextId("/x"))
    apply_all(one, transact(Put("/a", b"", 1)), transact(Put("/b", b""), Put("/a", b"", 1)))
    apply_all(other, transact(Put("/b", b"")), transact(Put("/a", b"", 1), Put("/b", b"")))
    assert one.snapshot() == other.snapshot()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\x00",
        lambda data: data.replace(b"/b/", b"/0/"),  # No longer sorted.
        lambda data: data[:1] + b"\x02" + data[2:],  # Version 2.
    ],
)
def test_what_is_no_snapshot_is_refused_and_changes_nothing(damage):
    machine = full_machine()
    before = machine.snapshot()
    damaged = damage(before)
    assert damaged != before
    with pytest.raises(Corruption):
        machine.restore(damaged)
    assert machine.snapshot() == before
