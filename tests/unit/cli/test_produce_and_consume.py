import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pydanube.cli.main import danube_cli
from pydanube.cli.options import Outside
from pydanube.wire.calls import StatusCode
from tests.support.fake_brokers import URL, FakeBrokers

TOPIC = "/default/test_topic"


@pytest.fixture
def cluster() -> FakeBrokers:
    return FakeBrokers()


def run(cluster: FakeBrokers, command: str, *arguments: str, input: bytes = b"") -> Result:
    result = CliRunner().invoke(
        danube_cli,
        [command, "-s", URL, *arguments],
        obj=Outside(cluster.open_channel),
        input=input,
    )
    assert cluster.open_channels == 0, "a channel was left open"
    return result


def produce(cluster: FakeBrokers, *arguments: str, input: bytes = b"") -> Result:
    return run(cluster, "produce", *arguments, input=input)


def consume(cluster: FakeBrokers, *arguments: str) -> Result:
    limits = ("--seconds", "20")  # So that a bug fails the test instead of stopping it.
    return run(cluster, "consume", "-m", "sub", "--start-position", "earliest", *limits, *arguments)


def test_messages_are_published_with_everything_asked_for(cluster: FakeBrokers) -> None:
    result = produce(
        cluster,
        *("-t", "/default/orders", "-n", "till", "-m", "hello", "--reliable"),
        *("-a", "a:b, c:d:e", "--routing-key", "k1", "--routing-key", "k2", "-c", "3", "-i", "1"),
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("acknowledged: 3 messages, 15 bytes, in ")
    assert cluster.topics["/default/orders"].reliable
    messages = cluster.topics["/default/orders"].messages
    assert [message.payload for message in messages] == [b"hello"] * 3
    assert [message.routing_key for message in messages] == ["k1", "k2", "k1"]
    assert dict(messages[0].attributes) == {"a": "b", "c": "d:e"}
    assert messages[0].producer_name == "till"


def test_publishing_without_a_pause_sends_every_message_once(cluster: FakeBrokers) -> None:
    result = produce(cluster, "-m", "x", "-c", "750", "-i", "0", "--output", "json")
    assert result.exit_code == 0, result.output
    rate = json.loads(result.stdout)
    assert (rate["messages"], rate["bytes"]) == (750, 750)
    assert len(cluster.topics[TOPIC].messages) == 750


def test_a_message_that_nobody_may_receive_is_warned_about(cluster: FakeBrokers) -> None:
    assert "--reliable" in produce(cluster, "-m", "x").stderr
    assert "--reliable" not in produce(cluster, "-t", "/default/r", "-m", "x", "--reliable").stderr


def test_files_and_standard_input_are_published_byte_by_byte(
    cluster: FakeBrokers, tmp_path: Path
) -> None:
    (tmp_path / "payload").write_bytes(b"\x00\xff\n")
    assert produce(cluster, "-f", str(tmp_path / "payload")).exit_code == 0
    assert produce(cluster, "-f", "-", input=b"\xfe\r\n").exit_code == 0
    assert cluster.payloads(TOPIC) == [b"\x00\xff\n", b"\xfe\r\n"]


def test_partitions_are_created_and_filled(cluster: FakeBrokers) -> None:
    produce(cluster, "-m", "x", "-p", "2", "-c", "4", "-i", "0")
    assert [len(cluster.payloads(f"{TOPIC}-part-{index}")) for index in (0, 1)] == [2, 2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "either --message or --file"),
        (["-m", "x", "-f", "-"], "either --message or --file"),
        (["-m", "x", "-a", "nocolon"], "key:value"),
        (["-m", "x", "-a", ":v"], "key:value"),
        (["-m", "x", "-c", "0"], "range"),
        (["-m", "x", "-t", "orders"], "/namespace/topic"),
        (["-m", "x", "--schema-version", "1"], "--schema-subject too"),
        (
            [
                "-m",
                "x",
                "--schema-subject",
                "s",
                "--schema-version",
                "1",
                "--schema-min-version",
                "1",
            ],
            "not both",
        ),
    ],
)
def test_what_cannot_be_published_is_refused(
    cluster: FakeBrokers, arguments: list[str], said: str
) -> None:
    result = produce(cluster, *arguments)
    assert (result.exit_code, said in result.stderr) == (2, True), result.output
    assert cluster.first.calls == []


@pytest.mark.parametrize("interval", ["0", "1"])
def test_a_refused_message_ends_with_the_count_of_the_acknowledged(
    cluster: FakeBrokers, interval: str
) -> None:
    cluster.first.refuse("SendMessage", StatusCode.INVALID_ARGUMENT)
    result = produce(cluster, "-m", "x", "-c", "5", "-i", interval)
    assert result.exit_code == 2
    assert "of 5 messages were acknowledged" in result.stderr
    assert "error[invalid_request]: scripted INVALID_ARGUMENT" in result.stderr


def test_messages_are_printed_and_acked(cluster: FakeBrokers) -> None:
    produce(cluster, "-m", "hello", "-a", "a:b", "--routing-key", "k", "-c", "2", "-i", "1")
    result = consume(cluster, "--count", "2")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"{TOPIC}@0 key=k a=b: hello",
        f"{TOPIC}@1 key=k a=b: hello",
    ]
    assert result.stderr.startswith("received 2 messages, 10 bytes, in ")
    assert cluster.subscriptions[TOPIC, "sub"].acked == {0, 1}


def test_json_is_one_line_per_message(cluster: FakeBrokers) -> None:
    produce(cluster, "-m", "größe")
    produce(cluster, "-f", "-", input=b"\xff\x00")
    lines = consume(cluster, "--count", "2", "--output", "json").stdout.splitlines()
    first, second = (json.loads(line) for line in lines)
    assert (first["payload"], first["offset"], first["topic"]) == ("größe", 0, TOPIC)
    assert (second["payload_base64"], "payload" in second) == ("/wA=", False)


def test_large_and_hostile_payloads_do_not_flood_the_terminal(cluster: FakeBrokers) -> None:
    produce(cluster, "-f", "-", input=b"x" * 1_025)
    produce(cluster, "-f", "-", input=b"\x1b[2J\xff")
    lines = consume(cluster, "--count", "2").stdout.splitlines()
    assert lines == [f"{TOPIC}@0: (1025 bytes)", f"{TOPIC}@1: \\x1b[2J\\xff"]


def test_messages_can_be_given_back(cluster: FakeBrokers) -> None:
    produce(cluster, "-m", "x")
    assert consume(cluster, "--count", "1", "--nack").exit_code == 0
    assert cluster.subscriptions[TOPIC, "sub"].nacked == [0]
    assert cluster.subscriptions[TOPIC, "sub"].acked == set()


def test_consuming_ends_after_its_count_and_leaves_the_rest(cluster: FakeBrokers) -> None:
    produce(cluster, "-m", "x", "-c", "3", "-i", "0")
    assert len(consume(cluster, "--count", "2").stdout.splitlines()) == 2
    assert len(cluster.subscriptions[TOPIC, "sub"].acked) == 2


def test_consuming_ends_after_its_time(cluster: FakeBrokers) -> None:
    produce(cluster, "-m", "x")
    result = consume(cluster, "--seconds", "0.2")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)


@pytest.mark.parametrize(
    ("name", "number"), [("exclusive", 0), ("shared", 1), ("fail-over", 2), ("key-shared", 3)]
)
def test_every_subscription_type_can_be_asked_for(
    cluster: FakeBrokers, name: str, number: int
) -> None:
    cluster.add_topic(TOPIC)
    arguments = ["--sub-type", name, "-n", "me", "--key-filter", "eu-*", "--seconds", "0.05"]
    assert consume(cluster, *arguments).exit_code == 0
    (consumer,) = cluster.first.consumers.values()
    assert (consumer.request.subscription_type, consumer.request.consumer_name) == (number, "me")
    assert list(consumer.request.key_filters) == ["eu-*"]
    assert consumer.request.start_position == "earliest"


@pytest.mark.parametrize(
    "position", ["sooner", "offset:", "offset:x", "latest:1", "offset:-1", "time:", "time:soon"]
)
def test_a_start_position_that_makes_no_sense_is_refused(
    cluster: FakeBrokers, position: str
) -> None:
    result = consume(cluster, "--start-position", position)
    assert (result.exit_code, "--start-position" in result.stderr) == (2, True)


def test_a_subscription_may_start_at_a_time(cluster: FakeBrokers) -> None:
    cluster.add_topic(TOPIC)
    position = ["--start-position", "time:2026-01-01T00:00:00Z"]
    assert run(cluster, "consume", "-m", "sub", "--seconds", "0.05", *position).exit_code == 0
    (consumer,) = cluster.first.consumers.values()
    assert consumer.request.start_position == "time:1767225600000"


def test_a_subscription_name_is_required(cluster: FakeBrokers) -> None:
    result = run(cluster, "consume")
    assert (result.exit_code, "--subscription" in result.stderr) == (2, True)


def test_a_topic_that_does_not_exist_is_told(cluster: FakeBrokers) -> None:
    result = consume(cluster, "-t", "/default/nothing")
    assert (result.exit_code, "error[not_found]" in result.stderr) == (3, True)
