"""The published danube-client, in its own process, against a real broker."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pydanube import sync
from pydanube.client.options import Compression
from tests.support.broker_process import BrokerProcess, operator_page
from tests.support.schema_calls import ORDER, ORDER_RENUMBERED, ORDER_WITH_NOTE

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
RELIABLE = pytest.mark.parametrize("reliable", [True, False], ids=["reliable", "best-effort"])


@pytest.fixture(scope="module", params=["http2", "grpcio"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("wheel") / "data", engine=request.param) as broker:
        yield broker
        assert broker.terminate() == 0, broker.log_tail()


def wheel(broker: BrokerProcess, scenario: str, **arguments: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.e2e.wheel_scenarios", scenario, broker.url]
    done = subprocess.run(
        [*command, json.dumps(arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{broker.log_tail()}"
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def payloads(received: list[dict[str, Any]]) -> list[str]:
    return [each["payload"] for each in received]


@RELIABLE
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "KeyShared"])
def test_every_subscription_type_delivers_everything_in_order(
    broker: BrokerProcess, kind: str, reliable: bool
) -> None:
    received = wheel(broker, "exchange", kind=kind, reliable=reliable, count=20)["received"]
    assert payloads(received) == [f"m{n}" for n in range(20)]
    assert [each["attributes"]["n"] for each in received] == [str(n) for n in range(20)]
    assert [each["offset"] for each in received] == (list(range(20)) if reliable else [0] * 20)


def test_payloads_out_weigh_in_the_metrics_what_they_weighed_coming_in(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        wheel(broker, "exchange", kind="Shared", reliable=True, count=20)
        _, page = operator_page(broker.metrics_port, "/metrics")
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    sent = sum(len(f"m{n}") for n in range(20))
    assert found["danube_topic_bytes_in_total"] == sent
    assert found["danube_consumer_bytes_out_total"] == sent


@RELIABLE
def test_three_exclusive_subscriptions_each_get_all_24(
    broker: BrokerProcess, reliable: bool
) -> None:
    result = wheel(broker, "fan_out", subscriptions=3, count=24, reliable=reliable)
    assert [payloads(each) for each in result["received"]] == [[f"m{n}" for n in range(24)]] * 3


@RELIABLE
def test_36_messages_over_3_shared_consumers_split_12_12_12(
    broker: BrokerProcess, reliable: bool
) -> None:
    result = wheel(broker, "share", consumers=3, count=36, reliable=reliable)
    assert [len(each) for each in result["received"]] == [12, 12, 12]
    everything = [name for each in result["received"] for name in payloads(each)]
    assert sorted(everything) == sorted(f"m{n}" for n in range(36))


@RELIABLE
def test_all_three_partitions_are_used(broker: BrokerProcess, reliable: bool) -> None:
    received = wheel(broker, "partitions", count=30, reliable=reliable)["received"]
    base = f"/default/partitioned-{reliable}"
    assert Counter(each["topic"] for each in received) == {
        f"{base}-part-{index}": 10 for index in range(3)
    }
    assert sorted(payloads(received)) == sorted(f"m{n}" for n in range(30))


@RELIABLE
def test_payloads_of_100_kib_arrive_intact(broker: BrokerProcess, reliable: bool) -> None:
    assert wheel(broker, "large", size=100 * 1024, count=8, reliable=reliable)["intact"] == 8


def test_a_nack_brings_the_same_payload_and_offset_back(broker: BrokerProcess) -> None:
    received = wheel(broker, "nack")["received"]
    seen = Counter((each["payload"], each["offset"]) for each in received)
    assert seen == {("m0", 0): 2, ("m1", 1): 1, ("m2", 2): 1}
    again = [each for each in received if each["payload"] == "m0"][1]
    assert again["attributes"]["x-delivery-attempt"] == "2"


@RELIABLE
def test_a_key_has_one_consumer_and_keeps_its_order(broker: BrokerProcess, reliable: bool) -> None:
    result = wheel(broker, "keys", key_count=6, per_key=8, reliable=reliable)["received"]
    owners = [{each["key"] for each in received} for received in result]
    assert not owners[0] & owners[1]
    assert owners[0]
    assert owners[1]
    for received in result:
        for key in {each["key"] for each in received}:
            mine = [each["payload"] for each in received if each["key"] == key]
            assert mine == [f"{key}-{n}" for n in range(8)]


@RELIABLE
def test_key_filters_split_exactly(broker: BrokerProcess, reliable: bool) -> None:
    europe, america = wheel(broker, "filters", reliable=reliable)["received"]
    assert Counter(each["key"] for each in europe) == {"eu-1": 5, "eu-22": 5}
    assert Counter(each["key"] for each in america) == {"us-1": 5}


def test_schemas_evolve_are_referred_to_and_enforced(broker: BrokerProcess) -> None:
    texts = [each.decode() for each in (ORDER, ORDER_WITH_NOTE, ORDER_RENUMBERED)]
    said = wheel(broker, "schemas", order=texts[0], with_note=texts[1], renumbered=texts[2])
    assert said["registered"] == ["1", "1"], "one id for all versions"
    assert said["again"] == "1"
    assert "not compatible" in said["incompatible"]
    assert said["versions"] == [1, 2]
    assert said["latest"] == [1, 2, texts[1]]
    assert said["pinned"] == [1, texts[0]]
    assert said["check"][0] is False
    for name in ("none", "latest", "pinned", "minimum"):
        assert said[f"created {name}"].isdigit() or said[f"created {name}"] == "None"
    assert "not found" in said["created unknown"]
    assert "version 9" in said["created too high"]
    assert said["configured"][0] is True
    assert "missing_schema_id" in said["sent none"]
    assert "payload_invalid" in said["sent invalid"]
    assert said["received"] == [[1, 2], [1, 1], [1, 2]]
    assert said["mode"] is True
    assert said["changed"] == "1"
    assert "is named by producers of topic /default/with-schema" in said["deleted"]


def test_what_the_registry_refuses_is_told_with_what_to_do_instead(tmp_path: Path) -> None:
    constants = [json.dumps({"const": number}) for number in (1, 2)]
    with BrokerProcess(tmp_path / "data") as broker:
        said = wheel(
            broker, "schema_corners", first=constants[0], second=constants[1], topic="/default/c"
        )
    assert "const_changed (writer: 1; reader: 2)" in said["changed"]
    assert "named by producers of topic /default/c. Keep it, or bind each topic" in said["in use"]
    assert "`danube schemas delete constant --version 1 --confirm --force`" in said["in use"]
    assert "force it" not in said["in use"]
    assert said["deleted"][0] is True
    assert "is listed again once it gets version 2" in said["deleted"][1]
    assert said["versions"] == []
    assert said["versions again"] == [2]


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_client_and_broker_carry_on_after_a_restart(tmp_path: Path, how: str) -> None:
    count = 120
    with BrokerProcess(tmp_path / "data") as broker:
        arguments = json.dumps({"count": count, "topic": "/default/carry-on", "pause": 0.005})
        command = [sys.executable, "-m", "tests.e2e.wheel_scenarios", "carry_on", broker.url]
        # Into a file: the client complains without end while the broker is away.
        with (
            (tmp_path / "client.log").open("wb") as log,
            subprocess.Popen(
                [*command, arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
            ) as client,
        ):
            result = follow(client, broker, how)
        assert client.returncode == 0, (tmp_path / "client.log").read_text()[-3000:]
        check_nothing_lost(result, count)
        # It gives a message up after three seconds; a busy machine takes longer for a restart.
        assert len(result["failed"]) <= 4, result["failed"]
        broker.wait_ready()
        assert broker.terminate() == 0, broker.log_tail()


def follow(client: subprocess.Popen[str], broker: BrokerProcess, how: str) -> dict[str, Any]:
    """End and restart the broker twice while the client works; return what it says at the end."""
    assert client.stdout is not None
    result: dict[str, Any] = {}
    for line in client.stdout:
        said = json.loads(line)
        if said.get("event") == "sent" and said["number"] in (40, 80):
            code = broker.terminate() if how == "SIGTERM" else broker.kill()
            assert code == (0 if how == "SIGTERM" else -9), broker.log_tail()
            broker.start(wait=False)
        if "acknowledged" in said:
            result = said
    return result


def check_nothing_lost(result: dict[str, Any], count: int) -> None:
    received = [each for each in result["received"] if "lost" not in each]
    assert set(result["acknowledged"]) <= set(payloads(received))
    offsets = {}
    for each in received:
        assert offsets.setdefault(each["offset"], each["payload"]) == each["payload"]
    # A send repeated after a lost reply may stand twice, so there may be more offsets than sends.
    assert sorted(offsets) == list(range(len(offsets)))
    assert len(offsets) >= count - len(result["failed"])
    firsts = list(dict.fromkeys(each["offset"] for each in received))
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_messages_of_a_compressed_batch_arrive_one_by_one(
    broker: BrokerProcess, compression: Compression
) -> None:
    topic = f"/default/packed-{compression}"
    sent = [f"one coffee, two teas, number {number:04}" for number in range(100)]
    with sync.connect(broker.url) as client:
        with client.producer(topic, compression=compression) as producer:
            producer.send_batch(sent)
        client.consumer(topic, "sub", start_position="earliest").close()
    received = wheel(broker, "drain", topic=topic, subscription="sub", count=100)["received"]
    assert payloads(received) == sent
    assert [each["offset"] for each in received] == list(range(100))
