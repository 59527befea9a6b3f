"""Typed handlers against a real broker: acked when done, nacked when not, finished when stopped."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

import pydanube
from pydanube import sync
from pydanube.client import standings
from pydanube.model.failure_policies import FailurePolicyChange
from pydanube.model.policies import FailurePolicy

ORDERS, INVOICES = "/default/orders", "/default/invoices"


@dataclass
class Order:
    item: str


class Invoice(msgspec.Struct):
    item: str
    euros: int


class Strict(pydantic.BaseModel):
    item: str


@pytest.fixture
def orders(danube_broker: pydanube.Broker) -> pydanube.Broker:
    with sync.connect(danube_broker.url) as client, client.producer(ORDERS) as producer:
        for item in ("tea", "milk", "cake"):
            producer.send(msgspec.json.encode(Order(item)))
    return danube_broker


async def unacked(
    broker: pydanube.Broker, subscription: str, *, seconds: float = 0.5
) -> list[bytes]:
    """What another consumer of the subscription gets once the app has left."""
    async with (
        pydanube.connect(broker.url) as client,
        client.consumer(ORDERS, subscription) as consumer,
    ):
        found = []
        try:
            while True:
                message = await consumer.receive(seconds_max=seconds)
                found.append(message.payload)
        except TimeoutError:
            return found


async def test_values_of_every_kind_reach_handlers_and_are_acked(orders: pydanube.Broker) -> None:
    app = pydanube.App(orders.url)
    seen: dict[str, list[object]] = {}
    done = asyncio.Event()

    def note(name: str, *values: object) -> None:
        seen.setdefault(name, []).extend(values)
        if sum(map(len, seen.values())) == 18:
            loop.call_soon_threadsafe(done.set)

    @app.subscriber(ORDERS, start_position="earliest")
    async def as_dataclass(order: Order) -> None:
        note("dataclass", order.item)

    @app.subscriber(ORDERS, start_position="earliest")
    async def as_model(order: Strict) -> None:
        note("model", order.item)

    @app.subscriber(ORDERS, start_position="earliest")
    def on_a_thread(order: dict[str, str]) -> None:
        assert threading.current_thread().name.startswith("handler-")
        note("thread", order["item"])

    @app.subscriber(ORDERS, start_position="earliest")
    async def as_text(order: str) -> None:
        note("text", order[9:-2])

    @app.subscriber(ORDERS, start_position="earliest")
    async def as_message(message: pydanube.ReceivedMessage[Order]) -> None:
        note("message", message.value.item)

    @app.subscriber(ORDERS, start_position="earliest")
    async def as_list(orders: list[Order]) -> None:
        note("list", *(order.item for order in orders))

    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30), app:
        await done.wait()
    assert set(map(tuple, seen.values())) == {("tea", "milk", "cake")}
    assert await unacked(orders, "as_dataclass") == []
    assert await unacked(orders, "as_list") == []


async def test_what_a_handler_raises_is_a_nack_and_it_is_called_again(
    orders: pydanube.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    app = pydanube.App(orders.url)
    calls: list[str] = []
    again = asyncio.Event()

    @app.subscriber(ORDERS, subscription="s", start_position="earliest")
    async def fail_once(order: Order) -> None:
        calls.append(order.item)
        if calls.count("milk") == 1 and order.item == "milk":
            raise ValueError("sour")
        if calls.count("milk") == 2:
            again.set()

    async with asyncio.timeout(30), app:
        await again.wait()
    assert calls[:3] == ["tea", "milk", "cake"]
    assert "sour" in caplog.text
    assert await unacked(orders, "s") == []


@pytest.mark.parametrize(("policy", "left"), [("drop", 0), ("nack", 1)])
async def test_a_payload_of_another_type_follows_the_policy(
    danube_broker: pydanube.Broker, policy: str, left: int
) -> None:
    app = pydanube.App(danube_broker.url)
    handled = asyncio.Event()

    @app.subscriber(ORDERS, subscription="s", start_position="earliest", undecodable=policy)  # type: ignore[arg-type]
    async def handle(order: Order) -> None:
        handled.set()

    async with pydanube.connect(danube_broker.url) as client, client.producer(ORDERS) as producer:
        await producer.send(b"no order")
        await producer.send(b'{"item":"tea"}')
    async with asyncio.timeout(30), app:
        await handled.wait()
    found = await unacked(danube_broker, "s", seconds=5 if left else 0.5)
    assert set(found) == ({b"no order"} if left else set())


async def test_ten_bad_messages_of_a_thousand_stop_nobody_in_the_default_set_up(
    danube_broker: pydanube.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The app of the handlers guide, with an argument that ten messages do not fit."""
    app = pydanube.App(danube_broker.url)
    handled: list[str] = []
    done = asyncio.Event()

    @app.publisher(INVOICES)
    @app.subscriber(ORDERS, subscription="billing", start_position="earliest")
    async def bill(order: Invoice) -> str | None:
        handled.append(order.item)
        if len(handled) == 990:
            done.set()
        return f"{order.item}: {order.euros} EUR" if order.euros else None

    rows = [
        b'{"item": 7}' if number % 100 == 50 else b'{"item":"i%d","euros":1}' % number
        for number in range(1_000)
    ]
    async with pydanube.connect(danube_broker.url) as client:
        async with client.producer(ORDERS) as producer:
            await producer.send_batch(rows)
        async with asyncio.timeout(120), app:
            await done.wait()
            async with client.consumer(
                f"{ORDERS}-dlq", "look", start_position="earliest"
            ) as dead_letters:
                dead = [await dead_letters.receive() for _ in range(10)]
    assert handled == [f"i{number}" for number in range(1_000) if number % 100 != 50]
    assert {int(each.attributes["x-original-topic-offset"]) for each in dead} == set(
        range(50, 1_000, 100)
    )
    first = dead[0].attributes
    assert (first["x-delivery-attempt"], first["x-original-subscription"]) == ("6", "billing")
    assert "Expected" in first["x-failure-reason"]
    assert await unacked(danube_broker, "billing") == []


async def test_the_order_of_a_key_holds_around_its_bad_messages(
    danube_broker: pydanube.Broker,
) -> None:
    """On Key-Shared a key goes on once its bad message is dead, and not before."""
    app = pydanube.App(danube_broker.url)
    handled: dict[str, list[int]] = {}
    done = asyncio.Event()
    keys, each, bad = ("a", "b", "c"), 20, 7

    @app.subscriber(ORDERS, subscription="s", start_position="earliest", concurrency=4,
                    subscription_type="KeyShared", retries=1)  # fmt: skip
    async def handle(message: pydanube.ReceivedMessage[Invoice]) -> None:
        order = message.value  # Raises for those that are none.
        handled.setdefault(order.item, []).append(order.euros)
        if sum(map(len, handled.values())) == len(keys) * (each - 1):
            done.set()

    rows = [
        {
            "payload": b"bad"
            if number == bad
            else b'{"item":"%s","euros":%d}' % (key.encode(), number),
            "routing_key": key,
        }
        for number in range(each)
        for key in keys
    ]
    async with pydanube.connect(danube_broker.url) as client:
        async with client.producer(ORDERS) as producer:
            await producer.send_batch(rows)
        async with asyncio.timeout(60), app:
            await done.wait()
        dead = [letter async for letter in pydanube.DeadLetters(client).read(f"{ORDERS}-dlq")]
    assert handled == {key: [n for n in range(each) if n != bad] for key in keys}
    assert sorted(letter.routing_key or "" for letter in dead) == list(keys)
    assert {letter.attempts for letter in dead} == {2}


async def policy_of(broker: pydanube.Broker, subscription: str) -> FailurePolicy:
    async with (
        pydanube.connect(broker.url) as client,
        client.consumer(ORDERS, subscription) as consumer,
    ):
        [standing] = await consumer.standings()
        return standing.failure_policy


@pytest.mark.parametrize(
    ("options", "earlier", "expected"),
    [
        ({}, None, ("DeadLetter", f"{ORDERS}-dlq", 5)),
        ({"retries": 2}, None, ("DeadLetter", f"{ORDERS}-dlq", 2)),
        ({"dead_letter": "/default/lost"}, None, ("DeadLetter", "/default/lost", 5)),
        ({"dead_letter": False}, None, ("Block", None, 5)),
        ({}, FailurePolicyChange(poison_policy="Drop"), ("Drop", None, 5)),
        (
            {"retries": 1},
            FailurePolicyChange(poison_policy="Drop", max_redelivery_count=9),
            ("Drop", None, 1),
        ),
        (
            {"dead_letter": True},
            FailurePolicyChange(max_redelivery_count=9),
            ("DeadLetter", f"{ORDERS}-dlq", 9),
        ),
    ],
)
async def test_a_subscriber_says_what_becomes_of_failures_and_leaves_the_rest_to_operators(
    orders: pydanube.Broker,
    options: dict[str, Any],
    earlier: FailurePolicyChange | None,
    expected: tuple[str, str | None, int],
) -> None:
    app = pydanube.App(orders.url)
    handled = asyncio.Event()

    @app.subscriber(ORDERS, subscription="s", start_position="earliest", **options)
    async def handle(order: Order) -> None:
        handled.set()

    if earlier is not None:
        async with pydanube.connect(orders.url) as client:
            await client.change_failure_policy(ORDERS, "s", earlier)
    async with asyncio.timeout(30), app:
        await handled.wait()
    policy = await policy_of(orders, "s")
    found = policy.poison_policy, policy.dead_letter_topic, policy.max_redelivery_count
    assert found == expected


@pytest.mark.parametrize("options", [{"retries": -1}, {"dead_letter": "lost"}])
def test_a_wish_that_makes_no_sense_is_refused_where_it_is_written(options: dict[str, Any]) -> None:
    with pytest.raises(pydanube.InvalidRequest, match=r"retries|lost"):
        pydanube.App().subscriber(ORDERS, **options)(lambda order: None)


async def test_an_app_whose_subscription_is_blocked_says_so(
    orders: pydanube.Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standings, "WATCH_SECONDS", 0.05)
    caplog.set_level("INFO", "pydanube.client")
    app = pydanube.App(orders.url)

    @app.subscriber(ORDERS, subscription="s", start_position="earliest", retries=0,
                    dead_letter=False)  # fmt: skip
    async def fail(order: Order) -> None:
        raise ValueError("sour")

    async def logged(words: str) -> str:
        while True:
            for record in caplog.records:
                if record.name == "pydanube.client.failing" and words in record.getMessage():
                    return record.getMessage()
            await asyncio.sleep(0.02)

    async with asyncio.timeout(30), app, pydanube.connect(orders.url) as client:
        told = await logged("the subscription is blocked")
        assert f"topic={ORDERS} subscription=s offset=0 attempts=1 reason=ValueError: sour" in told
        assert "next=danube topics set-failure-policy" in told
        await client.change_failure_policy(ORDERS, "s", FailurePolicyChange(poison_policy="Drop"))
        await logged("the subscription goes on")


async def test_a_best_effort_topic_is_served_without_a_failure_policy(
    danube_broker: pydanube.Broker,
) -> None:
    async with (
        pydanube.connect(danube_broker.url) as client,
        client.producer("/default/news", reliable=False) as producer,
    ):
        app = pydanube.App(danube_broker.url)
        handled = asyncio.Event()

        @app.subscriber("/default/news", subscription="s")
        async def handle(news: bytes) -> None:
            handled.set()

        async with asyncio.timeout(30), app:
            while not handled.is_set():
                await producer.send(b"new")
                await asyncio.sleep(0.05)
        app = pydanube.App(danube_broker.url)
        app.subscriber("/default/news", subscription="s", retries=3)(handle)
        async with asyncio.timeout(30), app:
            assert app._running is not None
            with pytest.raises(pydanube.Conflict, match="not reliable"):
                await app._running.until(asyncio.Event().wait())


async def test_what_is_returned_is_published(orders: pydanube.Broker) -> None:
    app = pydanube.App(orders.url)

    @app.publisher(INVOICES, key=lambda invoice: invoice.item)
    @app.subscriber(ORDERS, start_position="earliest", concurrency=3)
    async def bill(order: Order) -> Invoice | None:
        return None if order.item == "milk" else Invoice(order.item, 3)

    async with (
        asyncio.timeout(30),
        app,
        pydanube.connect(orders.url) as client,
        client.consumer(INVOICES, "s", type=Invoice, start_position="earliest") as invoices,
    ):
        received = [await invoices.receive() for _ in range(2)]
    assert {(each.value.item, each.routing_key) for each in received} == {
        ("tea", "tea"),
        ("cake", "cake"),
    }


async def test_a_handler_is_finished_before_the_app_stops(orders: pydanube.Broker) -> None:
    app = pydanube.App(orders.url)
    begun, finished = asyncio.Event(), []

    @app.subscriber(ORDERS, subscription="s", start_position="earliest")
    async def slow(order: Order) -> None:
        begun.set()
        await asyncio.sleep(0.3)
        finished.append(order.item)

    async with asyncio.timeout(30), app:
        await begun.wait()
    assert finished == ["tea"]
    assert b"tea" not in b"".join(await unacked(orders, "s"))


async def test_an_app_waits_for_a_topic_that_is_not_there_yet(
    danube_broker: pydanube.Broker,
) -> None:
    app = pydanube.App(danube_broker.url)
    handled = asyncio.Event()

    @app.subscriber(ORDERS, start_position="earliest")
    async def handle(order: bytes) -> None:
        handled.set()

    async with asyncio.timeout(30), app, pydanube.connect(danube_broker.url) as client:
        await asyncio.sleep(0.1)
        async with client.producer(ORDERS) as producer:
            await producer.send(b"late")
        await handled.wait()


SCRIPT = """
import sys, time, pydanube
app = pydanube.App(sys.argv[1])

@app.subscriber("/default/orders", subscription="s", start_position="earliest")
def handle(order: bytes) -> None:
    print("begun", flush=True)
    time.sleep(0.5)
    print("finished", flush=True)

app.run()
"""


def test_a_termination_signal_stops_an_app_in_order(orders: pydanube.Broker) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT, orders.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, signal.SIGTERM)
        output, errors = process.communicate(timeout=30)
    assert (output, errors, process.returncode) == ("finished\n", "", 0)


APP = """
import os, pydanube
app = pydanube.App(os.environ["BROKER"])

@app.subscriber("/default/orders", subscription="s", start_position="earliest")
async def handle(order: dict[str, str]) -> None:
    print(order["item"], flush=True)

not_an_app = 7
"""


def danube_run(directory: Path, name: str, url: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("danube")), "run", name, "--app-dir", str(directory)],
        env={**os.environ, "BROKER": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_danube_run_runs_an_app_until_it_is_told_to_stop(
    orders: pydanube.Broker, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with danube_run(tmp_path, "shop:app", orders.url) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["tea\n", "milk\n", "cake\n"]
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
    assert (output, process.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("name", "complaint", "code"),
    [
        ("shop", "names no app: write MODULE:APP", 2),
        ("shop:not_an_app", "not_an_app in shop is no pydanube.App", 2),
        ("shop:nothing", "nothing in shop is no pydanube.App", 2),
        ("cellar:app", "No module named 'cellar'; is --app-dir right?", 3),
    ],
)
def test_danube_run_says_what_is_wrong_with_a_name(
    tmp_path: Path, name: str, complaint: str, code: int
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with danube_run(tmp_path, name, "http://127.0.0.1:1") as process:
        output, errors = process.communicate(timeout=30)
    assert complaint in errors
    assert (output, "Traceback" in errors) == ("", False)
    assert process.returncode == code
