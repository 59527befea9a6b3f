"""What becomes of messages that stock clients cannot receive, with the published danube-client."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from pydanube import connect
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from tests.e2e.test_wheel import payloads, wheel
from tests.support.broker_process import BrokerProcess, free_ports
from tests.support.raw_client import RawClient

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LONG_BYTES = 6 * 1024 * 1024
DEAD_LETTERS = "/default/too-long-dead"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose limit is that of the published configuration."""
    data = tmp_path / "data"
    data.mkdir()
    config = {
        "cluster_name": "LONG",
        "broker": {"host": "127.0.0.1", "ports": {"raft": free_ports(1)[0]}},
        "meta_store": {"data_dir": str(data / "raft")},
        "bootstrap_namespaces": ["default"],
        "auth": {"mode": "none"},
        "storage": {"local_wal_root": str(data / "wal")},
        "policies": {"max_message_size": 10_485_760},
    }
    path = tmp_path / "broker.yml"
    path.write_text(yaml.safe_dump(config))
    with BrokerProcess(data, "--mode", "cluster", "--config-file", str(path)) as broker:
        yield broker


def bytes_sent(broker: BrokerProcess) -> float:
    """How many bytes of messages the broker has delivered."""
    lines = broker.get("/metrics")[1].splitlines()
    found = [line for line in lines if line.startswith("danube_consumer_bytes_out_total")]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def test_a_message_that_the_stock_client_cannot_take_backs_off_and_the_rest_arrives(
    broker: BrokerProcess,
) -> None:
    received = wheel(broker, "too_long", kind="Shared", size=LONG_BYTES, seconds=5)["received"]
    assert set(payloads(received)) == {"before", "behind"}
    # After 0, 1 and 3 s: without backing off it would be some hundreds.
    assert bytes_sent(broker) < 6 * LONG_BYTES
    log = broker.log_tail(400)
    assert "policies.max_message_size is 10485760, but stock clients receive" in log
    assert "a client ended its stream at a message longer than" in log


async def test_it_follows_the_failure_policy_to_the_dead_letters(broker: BrokerProcess) -> None:
    topic = "/default/too-long-Exclusive"
    client = RawClient(broker.url, broker.admin_url)
    try:
        await client.create_topic(topic)
        await client.set_failure_policy(
            topic,
            "sub",
            max_redelivery_count=1,
            base_redelivery_delay_ms=100,
            poison_policy=admin.SubscriptionPoisonPolicy.DeadLetter,
            dead_letter_topic=DEAD_LETTERS,
        )
        scenario = partial(wheel, broker, "too_long", kind="Exclusive", size=LONG_BYTES, seconds=4)
        received = (await asyncio.to_thread(scenario))["received"]
    finally:
        await client.close()
    assert set(payloads(received)) == {"before", "behind"}
    async with connect(broker.url) as reading:
        dead = await reading.reader(DEAD_LETTERS).to_arrow()
    assert [len(payload) for payload in dead["payload"].to_pylist()] == [LONG_BYTES]
