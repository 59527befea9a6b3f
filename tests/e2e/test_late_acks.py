"""Late acks of the published danube-client: names are made anew while it holds messages.

It has no word for it but topic, subscription, and what was in `msg_id`; over kill -9, too.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pydanube import sync
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
TOPIC = "/default/late"
SECONDS_MAX = 60


class Wheel:
    """A process of the published client that waits for a word in the middle."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the client has ended early; see its words above"
        result: dict[str, Any] = json.loads(line)
        return result

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()


@contextmanager
def wheel(broker: BrokerProcess, scenario: str, **arguments: Any) -> Iterator[Wheel]:
    command = [sys.executable, "-m", "tests.e2e.wheel_scenarios", scenario, broker.url]
    with subprocess.Popen(
        [*command, json.dumps(arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Wheel(process)
            assert process.wait(SECONDS_MAX) == 0
        finally:
            process.kill()


async def make_topic_anew(broker: BrokerProcess) -> None:
    async with RawClient(broker.url, broker.admin_url) as client:
        await client.delete_topic(TOPIC)
        await client.create_topic(TOPIC)


def make_subscription_anew(broker: BrokerProcess) -> None:
    with sync.connect(broker.url) as client:
        with client.consumer(TOPIC, "sub", name="old") as consumer:
            consumer.unsubscribe()
        with client.consumer(TOPIC, "sub", start_position="earliest"):
            pass


def received(broker: BrokerProcess) -> list[bytes]:
    """Return what a consumer of the subscription gets now."""
    found = []
    with sync.connect(broker.url) as client, client.consumer(TOPIC, "sub") as consumer:
        try:
            while True:
                message = consumer.receive(seconds_max=3)
                found.append(message.payload)
                consumer.ack(message)
        except TimeoutError:
            return sorted(found)


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
@pytest.mark.parametrize("anew", ["topic", "subscription"])
async def test_what_was_made_anew_loses_nothing_to_late_acks(
    tmp_path: Path, anew: str, killed: bool
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with wheel(broker, "late_hands", topic=TOPIC) as client:
            assert [each["payload"] for each in client.hear()["held"]] == ["old0", "old1", "old2"]
            if anew == "topic":
                await make_topic_anew(broker)
                client.tell("publish")
            else:
                make_subscription_anew(broker)
                client.tell("none")
            word = "new" if anew == "topic" else "old"
            expected = [f"{word}{number}" for number in range(3)]
            assert sorted(each["payload"] for each in client.hear()["got"]) == expected
        if killed:
            broker.kill()
            broker.start()
        assert received(broker) == [each.encode() for each in expected]
        assert broker.terminate() == 0, broker.log_tail()
