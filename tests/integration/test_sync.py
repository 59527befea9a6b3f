"""The blocking client: the same promises, from any thread, with or without an event loop."""

import asyncio
import gc
import inspect
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

import pydanube
from pydanube import sync

TOPIC = "/default/orders"


@dataclass
class Order:
    item: str


def client_threads() -> int:
    return sum(thread.name == "danube-client" for thread in threading.enumerate())


def test_messages_go_and_come(danube_broker: pydanube.Broker) -> None:
    with sync.connect(danube_broker.url) as client:
        with client.producer(TOPIC, name="till") as producer:
            assert (producer.name, producer.topics) == ("till", [TOPIC])
            assert [producer.send(b"%d" % number).offset for number in range(3)] == [0, 1, 2]
        with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
            received = []
            for message in consumer:
                received.append(message.payload)
                consumer.ack(message)
                if len(received) == 3:
                    break
            assert received == [b"0", b"1", b"2"]
            with pytest.raises(TimeoutError):
                consumer.receive(seconds_max=0.05)
        assert consumer.closed
    assert client.closed
    assert client_threads() == 0


def test_types_batches_and_readers_are_there_too(danube_broker: pydanube.Broker) -> None:
    with sync.connect(danube_broker.url) as client:
        with client.producer(TOPIC, type=Order, compression="zstd") as producer:
            producer.send(Order("tea"))
            producer.send_batch([Order("milk")] * 100)
        with client.consumer(TOPIC, "s", type=Order, start_position="earliest") as consumer:
            assert consumer.receive().value == Order("tea")
        with client.consumer(TOPIC, "b", start_position="earliest") as consumer:
            rows = 0
            for batch in consumer.batches():
                rows += batch.rows.num_rows
                consumer.ack_batch(batch)
                if rows == 101:
                    break
        reader = client.reader(TOPIC)
        assert reader.topic == TOPIC
        assert sum(batch.rows.num_rows for batch in reader.batches()) == 101
        assert reader.to_arrow().num_rows == len(reader.to_pandas()) == len(reader.to_polars())


def test_errors_keep_their_kind(danube_broker: pydanube.Broker) -> None:
    with sync.connect(danube_broker.url) as client:
        with pytest.raises(pydanube.NotFound):
            client.consumer("/default/nothing", "s")
        with pytest.raises(pydanube.InvalidRequest):
            client.producer("no topic")
        producer = client.producer(TOPIC)
        client.close()
        client.close()
        with pytest.raises(pydanube.Conflict, match="closed"):
            producer.send(b"a")
        producer.close()


async def test_a_running_event_loop_is_no_obstacle(danube_broker: pydanube.Broker) -> None:
    with sync.connect(danube_broker.url) as client, client.producer(TOPIC) as producer:
        assert producer.send(b"a").offset == 0
        assert (await asyncio.to_thread(producer.send, b"b")).offset == 1


def test_many_threads_share_a_producer_and_what_they_send_is_gathered(
    danube_broker: pydanube.Broker,
) -> None:
    with (
        sync.connect(danube_broker.url) as client,
        client.producer(TOPIC) as producer,
        ThreadPoolExecutor(8) as threads,
    ):
        sent = list(threads.map(lambda number: producer.send(b"%d" % number), range(200)))
        assert sorted(each.offset or 0 for each in sent) == list(range(200))


def test_closing_from_another_thread_ends_the_loop_over_messages(
    danube_broker: pydanube.Broker,
) -> None:
    with sync.connect(danube_broker.url) as client:
        client.producer(TOPIC)
        consumer = client.consumer(TOPIC, "s")
        timer = threading.Timer(0.1, consumer.close)
        timer.start()
        assert list(consumer) == []
        timer.join()


def test_a_client_that_is_forgotten_leaves_no_thread(danube_broker: pydanube.Broker) -> None:
    sync.connect(danube_broker.url)
    gc.collect()
    assert client_threads() == 0
    with pytest.raises(pydanube.InvalidRequest):
        sync.connect("ftp://nowhere").producer(TOPIC)
    gc.collect()
    assert client_threads() == 0


SCRIPT = """
import sys
import pydanube.sync

client = pydanube.sync.connect(sys.argv[1])
producer = client.producer("/default/orders")
consumer = client.consumer("/default/orders", "s")
try:
    print("waiting", flush=True)
    consumer.receive()
except KeyboardInterrupt:
    producer.send(b"after")
    print(consumer.receive(seconds_max=5).payload, flush=True)
"""


def test_an_interrupt_ends_the_call_and_nothing_else(danube_broker: pydanube.Broker) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT, danube_broker.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert (output, errors, process.returncode) == ("b'after'\n", "", 0)


@pytest.mark.parametrize("name", ["Client", "Producer", "Consumer", "Reader"])
def test_every_public_method_has_its_twin_with_the_same_parameters(name: str) -> None:
    twin, original = getattr(sync, name), getattr(pydanube, name)
    for member, value in vars(original).items():
        if member.startswith("_") or (name, member) in (
            ("Consumer", "open"),
            ("Consumer", "receive_nowait"),
            ("Consumer", "displace"),
            ("Consumer", "is_namesake_of"),
            ("Client", "brokers"),
        ):
            continue
        if inspect.isfunction(value):
            parameters = list(inspect.signature(value).parameters)
            assert list(inspect.signature(getattr(twin, member)).parameters) == parameters
            assert not inspect.iscoroutinefunction(getattr(twin, member))
        else:
            assert hasattr(twin, member)


def test_it_costs_nothing_to_import() -> None:
    code = (
        "import sys, pydanube, pydanube.sync;"
        "assert pydanube.sync.connect;"
        "assert not {'pyarrow', 'grpc', 'pandas', 'polars', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
