"""`danube dlq` against a real broker: nothing is lost, nothing else is touched."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import pydanube
from pydanube.client.dead_letters import CURSOR, DeadLetters
from pydanube.errors import Unavailable
from pydanube.model.failure_policies import FailurePolicyChange

ORDERS, DEAD = "/default/orders", "/default/orders-dlq"
COUNT = 6


@pytest.fixture
async def client(danube_broker: pydanube.Broker) -> AsyncIterator[pydanube.Client]:
    async with pydanube.connect(danube_broker.url) as client:
        yield client


@pytest.fixture
async def dead(client: pydanube.Client) -> DeadLetters:
    """Six messages, two keys, all of them dead."""
    async with client.producer(ORDERS, name="till") as producer:
        await producer.send_batch(
            [
                {
                    "payload": b"%d" % number,
                    "routing_key": f"k{number % 2}",
                    "attributes": {"unit": "box"},
                }
                for number in range(COUNT)
            ]
        )
    change = FailurePolicyChange(max_redelivery_count=0, poison_policy="DeadLetter")
    await client.change_failure_policy(ORDERS, "billing", change)
    await die(client, COUNT, start_position="earliest")
    return DeadLetters(client)


async def die(client: pydanube.Client, count: int, **options: Any) -> None:
    async with client.consumer(ORDERS, "billing", **options) as consumer:
        for _ in range(count):
            await consumer.nack(await consumer.receive(), reason="not\nan order")
        while any(standing.lag for standing in await consumer.standings()):
            pass


async def payloads(client: pydanube.Client, topic: str) -> list[bytes]:
    return [
        payload
        async for batch in client.reader(topic).batches()
        for payload in batch.payloads()
    ]  # fmt: skip


async def test_dead_letters_are_listed_and_read_and_stay(dead: DeadLetters) -> None:
    [listed] = await dead.topics()
    assert listed.dead_letter_topic == DEAD
    assert (listed.messages, listed.fed_by) == (COUNT, [f"{ORDERS} billing"])
    assert await dead.topics("system") == []
    for _ in range(2):
        letters = [letter async for letter in dead.read(DEAD, count=2)]
        assert [letter.offset for letter in letters] == [0, 1]
        first = letters[0]
        assert (first.original_topic, first.original_offset, first.subscription) == (
            ORDERS, 0, "billing",
        )  # fmt: skip
        assert (first.attempts, first.reason, first.routing_key) == (1, "not\nan order", "k0")
    assert [letter.offset async for letter in dead.read(DEAD, start=4)] == [4, 5]
    with pytest.raises(pydanube.NotFound, match="danube dlq list"):
        await dead.purge("/default/nowhere")


async def test_requeued_messages_are_as_they_were_in_their_order_and_taken_out(
    client: pydanube.Client, dead: DeadLetters
) -> None:
    part = await dead.requeue(DEAD, count=2)
    assert (part.messages, part.left) == (2, COUNT - 2)
    rest = await dead.requeue(DEAD)
    assert (rest.messages, rest.left) == (COUNT - 2, 0)
    assert (await dead.requeue(DEAD)).messages == 0
    assert [letter async for letter in dead.read(DEAD)] == []
    async with client.consumer(ORDERS, "billing") as consumer:
        back = [await consumer.receive(seconds_max=20) for _ in range(COUNT)]
        for message in back:
            await consumer.ack(message)
    assert [message.payload for message in back] == [b"%d" % number for number in range(COUNT)]
    assert [message.offset for message in back] == list(range(COUNT, 2 * COUNT))
    first = back[0]
    assert (first.routing_key, first.producer_name) == ("k0", "till")
    assert dict(first.attributes) == {
        "unit": "box",
        "x-requeued-from": f"{DEAD}@0",
        "x-requeue-count": "1",
        "x-original-publish-time": first.attributes["x-original-publish-time"],
    }
    assert int(first.attributes["x-original-publish-time"]) <= first.publish_time_ms


async def test_what_could_not_be_published_stays(
    dead: DeadLetters, client: pydanube.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise Unavailable("no room")

    monkeypatch.setattr(pydanube.Producer, "send_batch", full)
    with pytest.raises(Unavailable) as refused:
        await dead.requeue(DEAD)
    assert refused.value.__notes__ == ["0 dead letters were requeued and taken out before"]
    monkeypatch.undo()
    assert (await dead.topics())[0].messages == COUNT
    assert len(await payloads(client, ORDERS)) == COUNT


async def test_a_crash_between_publishing_and_taking_out_repeats_some_and_loses_none(
    dead: DeadLetters, client: pydanube.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_: object) -> None:
        raise Unavailable("killed")

    monkeypatch.setattr("pydanube.client.dead_letters.CHUNK_ROWS", 4)
    monkeypatch.setattr(DeadLetters, "_advance", crash)
    with pytest.raises(Unavailable):
        await dead.requeue(DEAD)
    monkeypatch.undo()
    assert (await dead.topics())[0].messages == COUNT
    assert (await dead.requeue(DEAD)).left == 0
    sent = (await payloads(client, ORDERS))[COUNT:]
    assert sent == [b"%d" % number for number in (0, 1, 2, 3, 0, 1, 2, 3, 4, 5)]


async def test_messages_that_fail_again_come_back_once_and_a_requeue_ends(
    dead: DeadLetters, client: pydanube.Client
) -> None:
    assert (await dead.requeue(DEAD)).messages == COUNT
    await die(client, COUNT)
    letters = [letter async for letter in dead.read(DEAD)]
    assert [letter.offset for letter in letters] == list(range(COUNT, 2 * COUNT))
    assert letters[0].original_offset == COUNT
    assert (await dead.requeue(DEAD, to="/default/orders")).messages == COUNT
    async with client.consumer(ORDERS, "billing") as consumer:
        again = await consumer.receive(seconds_max=20)
    assert again.attributes["x-requeue-count"] == "2"


async def test_purged_ones_are_not_requeued_and_other_subscriptions_see_them_still(
    dead: DeadLetters, client: pydanube.Client
) -> None:
    purged = await dead.purge(DEAD, count=4)
    assert (purged.messages, purged.left) == (4, 2)
    assert (await dead.requeue(DEAD)).messages == 2
    assert (await payloads(client, ORDERS))[COUNT:] == [b"4", b"5"]
    async with client.consumer(DEAD, "auditor", start_position="earliest") as auditor:
        assert (await auditor.receive(seconds_max=20)).payload == b"0"
        assert {each.subscription for each in await auditor.standings()} == {"auditor"}
    assert CURSOR == "danube-dlq"


async def test_a_message_without_an_origin_needs_to_be_told_where_to(
    dead: DeadLetters, client: pydanube.Client
) -> None:
    await dead.purge(DEAD)
    async with client.producer(DEAD) as producer:
        await producer.send(b"by hand")
    with pytest.raises(pydanube.InvalidRequest, match="--to"):
        await dead.requeue(DEAD)
    with pytest.raises(pydanube.InvalidRequest, match="to itself"):
        await dead.requeue(DEAD, to=DEAD)
    with pytest.raises(pydanube.NotFound, match="does not exist any more"):
        await dead.requeue(DEAD, to="/default/nowhere")
    assert (await dead.topics())[0].messages == 1
    assert (await dead.requeue(DEAD, to=ORDERS)).left == 0


async def test_nothing_goes_back_to_a_topic_that_acknowledges_before_the_disk_has_it(
    danube_broker: pydanube.Broker, dead: DeadLetters
) -> None:
    line = "topics create /default/fast --dispatch-strategy reliable --durability memory"
    danube(danube_broker, *line.split(), "--endpoint", danube_broker.admin_url)
    with pytest.raises(pydanube.Conflict, match="durability fsync"):
        await dead.requeue(DEAD, to="/default/fast")
    assert (await dead.topics())[0].messages == COUNT


def danube(broker: pydanube.Broker, *line: str, code: int = 0) -> str:
    program = str(Path(sys.executable).with_name("danube"))
    done = subprocess.run([program, *line], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


async def test_the_commands_do_it_and_answer_in_json_too(
    danube_broker: pydanube.Broker, dead: DeadLetters
) -> None:
    at = ("-s", danube_broker.url)
    assert DEAD in danube(danube_broker, "dlq", "list", *at)
    [listed] = json.loads(danube(danube_broker, "dlq", "list", *at, "--output", "json"))
    assert listed == {
        "dead_letter_topic": DEAD, "messages": COUNT, "fed_by": [f"{ORDERS} billing"],
    }  # fmt: skip
    text = danube(danube_broker, "dlq", "read", DEAD, "--count", "1", *at)
    assert "failed  1 times: not an order" in text
    line = danube(danube_broker, "dlq", "read", DEAD, "--count", "1", *at, "--output", "json")
    assert json.loads(line)["payload"] == "0"
    out = danube(danube_broker, "dlq", "requeue", DEAD, "--count", "1", *at, "--output", "json")
    assert json.loads(out) == {
        "dead_letter_topic": DEAD, "change": "requeued", "messages": 1, "left": COUNT - 1,
    }  # fmt: skip
    assert "--confirm" in danube(danube_broker, "dlq", "purge", DEAD, *at, code=2)
    out = danube(danube_broker, "dlq", "purge", DEAD, "--confirm", *at, "--output", "json")
    assert json.loads(out)["left"] == 0


async def test_the_tool_of_the_reference_shows_the_defaults_and_changes_what_it_is_given(
    danube_broker: pydanube.Broker, client: pydanube.Client
) -> None:
    async with client.producer(ORDERS) as producer:
        await producer.send(b"x")
    async with client.consumer(ORDERS, "billing"):
        at = ("-s", "billing", "--endpoint", danube_broker.admin_url)
        shown = danube_admin("topics", "get-failure-policy", ORDERS, *at)
        lines = dict(line.split(maxsplit=1) for line in shown.splitlines())
        assert "-" not in lines.values()
        assert (lines["poison_policy"], lines["max_redelivery_count"]) == ("Block", "5")
        assert (lines["subscription_type"], lines["dead_letter_topic"]) == ("Shared", "none")
        line = ("topics", "set-failure-policy", ORDERS, *at)
        danube_admin(*line, "--max-redelivery-count", "2")
        out = danube_admin(*line, "--poison-policy", "dead_letter", "--output", "json")
    policy = json.loads(out)["failure_policy"]
    assert (policy["max_redelivery_count"], policy["ack_timeout_ms"]) == (2, 30_000)
    assert (policy["poison_policy"], policy["dead_letter_topic"]) == ("DeadLetter", DEAD)


def danube_admin(*line: str) -> str:
    program = str(Path(sys.executable).with_name("danube-admin"))
    done = subprocess.run([program, *line], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_consuming_a_blocked_subscription_says_on_stderr_why_nothing_comes(
    danube_broker: pydanube.Broker, client: pydanube.Client
) -> None:
    async with client.producer(ORDERS) as producer:
        await producer.send_batch([b"bad", b"good"])
    change = FailurePolicyChange(max_redelivery_count=0)
    await client.change_failure_policy(ORDERS, "billing", change)
    async with client.consumer(ORDERS, "billing", start_position="earliest") as consumer:
        await consumer.nack(await consumer.receive(), reason="sour")
        await consumer.ack(await consumer.receive())
    line = ("consume", "-s", danube_broker.url, "-t", ORDERS, "-m", "billing", "--seconds", "3")
    told = danube(danube_broker, *line)
    assert "warning: billing of /default/orders is blocked at offset 0 after 1 attempt:" in told
    assert "sour" in told
    assert "next: danube topics set-failure-policy" in told
