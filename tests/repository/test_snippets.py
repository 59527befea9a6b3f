"""Every Python snippet of the pages that is marked to be run, runs against a broker."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tools import tidy

SNIPPETS = list(tidy.snippets(tidy.REPOSITORY))
DEFAULT_URL = "http://127.0.0.1:6650"
FLIGHT_URL = "grpc://127.0.0.1:6650"


@pytest.fixture(scope="module")
def broker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.url


def test_the_pages_hold_snippets() -> None:
    assert SNIPPETS


@pytest.mark.parametrize(
    ("place", "code"), SNIPPETS, ids=[place.replace("/", ".") for place, _ in SNIPPETS]
)
def test_a_snippet_runs(place: str, code: str, broker_url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", at_broker(code, broker_url)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{place}\n{done.stdout}{done.stderr}"


def at_broker(code: str, broker_url: str) -> str:
    """Return the code with the addresses readers would use replaced by the broker's own."""
    flight_url = broker_url.replace("http://", "grpc://")
    return code.replace(DEFAULT_URL, broker_url).replace(FLIGHT_URL, flight_url)
