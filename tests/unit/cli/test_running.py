from collections.abc import Callable

import pytest
from typing_extensions import override

from pydanube.cli.running import Meter
from pydanube.runtime.clock import Clock, Timer


class StoppedClock(Clock):
    def __init__(self) -> None:
        self.ms = 0

    @override
    def now_ms(self) -> int:
        return self.ms

    @override
    def monotonic_ms(self) -> int:
        return self.ms

    @override
    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a meter never waits")

    @override
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        raise AssertionError("a meter never waits")


def test_away_from_a_terminal_long_work_prints_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = StoppedClock()
    with Meter(clock, "published", 100, quiet=False) as meter:
        for _ in range(30):
            clock.ms += 500
            meter.count(7)
    assert capsys.readouterr().err.splitlines() == [
        "published 10 of 100 (2/s)",
        "published 20 of 100 (2/s)",
        "published 30 of 100 (2/s)",
    ]
    assert str(meter.rate()) == "30 messages, 210 bytes, in 15.0 s (2/s)"


def test_a_quiet_meter_counts_and_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = StoppedClock()
    with Meter(clock, "published", None, quiet=True) as meter:
        clock.ms += 60_000
        meter.count(1)
    assert capsys.readouterr().err == ""
    assert meter.rate().messages == 1


def test_work_done_in_no_time_has_a_rate_too() -> None:
    with Meter(StoppedClock(), "published", None, quiet=True) as meter:
        meter.count(1)
    assert meter.rate().messages_per_second == 1_000
