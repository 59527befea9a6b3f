"""When the leader says that leases have ended."""

from pydanube.metadata.commands import GrantLease, RenewLease
from pydanube.metadata.leases import LeaseTimer
from pydanube.metadata.state_machine import StateMachine
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.loop import run_simulated


def test_nothing_ends_before_whoever_holds_it_could_renew_it() -> None:
    async def life(_: Randomness) -> None:
        clock, machine = SimulatedClock(), StateMachine()
        machine.apply(GrantLease(ttl_ms=1_000, now_ms=5_000))
        machine.apply(GrantLease(ttl_ms=5_000, now_ms=5_000))
        ended: list[int] = []
        timer = LeaseTimer(clock, machine, ended.append, 7_000, 300)
        timer.arm()
        await clock.sleep(0.299)
        assert not ended
        await clock.sleep(0.01)
        assert ended == [7_300]
        timer.close()

    run_simulated(life, "grace", seconds_max=100, steps_max=100_000)


def test_a_lease_that_was_renewed_meanwhile_goes_on() -> None:
    async def life(_: Randomness) -> None:
        clock, machine = SimulatedClock(), StateMachine()
        machine.apply(GrantLease(ttl_ms=1_000, now_ms=5_000))
        ended: list[int] = []
        timer = LeaseTimer(clock, machine, ended.append, 7_000, 300)
        timer.arm()
        await clock.sleep(0.2)
        machine.apply(RenewLease(1, timer.now_ms()))
        timer.arm()
        await clock.sleep(0.99)
        assert not ended
        await clock.sleep(0.02)
        assert len(ended) == 1
        timer.close()

    run_simulated(life, "renewed in the grace", seconds_max=100, steps_max=100_000)
