"""A broker that is killed at any moment loses nothing it acknowledged and repeats no settled ack.

The same storm runs on files that lose what was not synced, and must then find two planted bugs.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.checkers import Violation
from tests.support.cut_disk import CutBroker, cut_disk
from tests.support.kill_storm import KillStorm
from tests.support.volatile_broker import EARLY_ACKS, UNSYNCED_JOURNAL, WITHOUT_SYNC

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KILLS = 50
KILLS_ON_VOLATILE_FILES = 10
VOLATILE = [sys.executable, "-m", "tests.support.volatile_broker"]


def laws(violations: list[Violation]) -> Counter[str]:
    return Counter(violation.law for violation in violations)


async def test_a_broker_killed_50_times_under_load_keeps_every_promise(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        storm = KillStorm(broker, "a real broker")
        violations = await storm.run(KILLS)
        print(storm.figures)
        assert violations == [], f"{laws(violations)}\n{broker.log_tail()}"
        assert storm.kills >= KILLS
        assert broker.terminate() == 0, broker.log_tail()


async def test_what_was_not_synced_when_the_machine_died_was_not_acknowledged(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "data", command=VOLATILE) as broker:
        storm = KillStorm(broker, "volatile files")
        violations = await storm.run(KILLS_ON_VOLATILE_FILES)
        print(storm.figures)
        assert violations == [], f"{laws(violations)}\n{broker.log_tail()}"


async def test_a_machine_that_loses_its_power_under_load_keeps_every_promise(
    tmp_path: Path,
) -> None:
    with cut_disk(tmp_path) as disk, CutBroker(disk) as broker:
        storm = KillStorm(broker, "power cuts")
        violations = await storm.run(KILLS_ON_VOLATILE_FILES)
        print(storm.figures)
        assert violations == [], f"{laws(violations)}\n{broker.log_tail()}"
        assert broker.terminate() == 0, broker.log_tail()


async def test_power_cuts_show_a_journal_that_is_not_synced(tmp_path: Path) -> None:
    with (
        cut_disk(tmp_path) as disk,
        CutBroker(disk, command=[*VOLATILE, UNSYNCED_JOURNAL]) as broker,
    ):
        storm = KillStorm(broker, "power cuts without syncs")
        violations = await storm.run(KILLS_ON_VOLATILE_FILES, drain_seconds_max=5)
        print(storm.figures, laws(violations))
        assert {"lost write", "inconsistent offset"} & set(laws(violations))
        broker.terminate()


@pytest.mark.parametrize(
    ("bug", "broken"),
    [
        (WITHOUT_SYNC, {"lost write", "inconsistent offset", "acked and redelivered"}),
        (EARLY_ACKS, {"acked and redelivered"}),
    ],
)
async def test_the_storm_finds_a_planted_bug(tmp_path: Path, bug: str, broken: set[str]) -> None:
    with BrokerProcess(tmp_path / "data", command=[*VOLATILE, bug]) as broker:
        storm = KillStorm(broker, f"planted {bug}")
        violations = await storm.run(KILLS_ON_VOLATILE_FILES, drain_seconds_max=5)
        print(storm.figures, laws(violations))
        assert broken & set(laws(violations)), "the storm would not notice"
