import pytest

from pydanube.errors import Conflict
from pydanube.topics.leases import LEASE_MS, CursorLeases, Lease
from tests.support.advancing_clock import AdvancingClock

TTL_MS = 80_000
TTL = TTL_MS / 1000


class SettableClock(AdvancingClock):
    """Time stands still unless it is set forward; the wall clock may jump alone."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 1_000.0
        self.wall_ms = 1_700_000_000_000

    def pass_seconds(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall_ms += int(seconds * 1000)

    def monotonic_seconds(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return self.wall_ms


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def leases(clock: SettableClock) -> CursorLeases:
    return CursorLeases(clock)


def lease(clock: SettableClock, holder: str = "job", **fields) -> Lease:
    return Lease(holder=holder, touched_ms=clock.now_ms(), **{"ttl_ms": TTL_MS, **fields})


def test_a_subscription_without_a_lease_holds_for_ever(leases, clock):
    clock.pass_seconds(10 * LEASE_MS / 1000)
    assert leases.holds("s")
    assert not leases.has_lapsed("s")
    leases.check_holder("s", None)


def test_an_untouched_hold_lapses_after_its_time_and_is_told_once(leases, clock):
    leases.begin("s", lease(clock))
    clock.pass_seconds(TTL)
    assert leases.holds("s")
    assert leases.newly_lapsed() == []
    clock.pass_seconds(1)
    assert not leases.holds("s")
    assert [name for name, _ in leases.newly_lapsed()] == ["s"]
    assert leases.newly_lapsed() == []


def test_whoever_shows_up_in_time_holds_on_and_a_lapsed_hold_can_be_had_back(leases, clock):
    leases.begin("s", lease(clock))
    for _ in range(5):
        clock.pass_seconds(TTL)
        leases.touch("s")
    assert leases.holds("s")
    clock.pass_seconds(TTL + 1)
    assert leases.newly_lapsed()
    leases.touch("s")
    assert leases.holds("s")
    clock.pass_seconds(TTL + 1)
    assert leases.newly_lapsed(), "it is told again"


def test_a_lease_may_hold_nothing_and_then_never_lapses_noticeably(leases, clock):
    leases.begin("s", lease(clock, hold=False))
    assert not leases.holds("s")
    clock.pass_seconds(TTL + 1)
    assert leases.newly_lapsed() == []


def test_a_wall_clock_that_jumps_lets_nothing_lapse(leases, clock):
    leases.begin("s", lease(clock))
    clock.wall_ms += 1000 * TTL_MS
    assert leases.holds("s")


def test_the_newest_holder_wins(leases, clock):
    leases.begin("s", lease(clock, "one"))
    leases.check_holder("s", "one")
    leases.begin("s", lease(clock, "two"))
    leases.check_holder("s", "two")
    for other in ("one", None):
        with pytest.raises(Conflict, match="is held by two"):
            leases.check_holder("s", other)


def test_a_holder_without_a_lease_is_told_to_take_one(leases):
    with pytest.raises(Conflict, match=r"takes it with cursor\.lease"):
        leases.check_holder("s", "one")


def test_time_counts_across_a_restart(leases, clock):
    kept = lease(clock)
    clock.pass_seconds(TTL / 2)
    leases.restore("s", kept)
    clock.pass_seconds(TTL / 2)
    assert leases.holds("s")
    clock.pass_seconds(1)
    assert not leases.holds("s")


def test_after_a_long_absence_of_the_broker_the_holder_has_an_eighth_of_its_time(leases, clock):
    kept = lease(clock)
    clock.pass_seconds(10 * TTL)
    leases.restore("s", kept)
    clock.pass_seconds(TTL / 8)
    assert leases.holds("s")
    clock.pass_seconds(1)
    assert not leases.holds("s")


def test_a_clock_set_back_does_not_lengthen_a_lease(leases, clock):
    kept = lease(clock)
    clock.wall_ms -= 50 * TTL_MS
    leases.restore("s", kept)
    clock.pass_seconds(TTL + 1)
    assert not leases.holds("s")


def test_the_catalogue_is_told_of_touches_now_and_then(leases, clock):
    leases.begin("s", lease(clock))
    clock.pass_seconds(TTL / 8)
    leases.touch("s")
    assert leases.outdated() == []
    clock.pass_seconds(1)
    leases.touch("s")
    ((name, newer),) = leases.outdated()
    assert (name, newer.touched_ms) == ("s", clock.now_ms())
    leases.stored("s", newer)
    assert leases.outdated() == []


def test_what_another_holder_has_begun_meanwhile_stays(leases, clock):
    leases.begin("s", lease(clock, "one"))
    old = lease(clock, "one")
    leases.begin("s", lease(clock, "two"))
    leases.stored("s", old)
    kept = leases.get("s")
    assert kept is not None
    assert kept.holder == "two"
