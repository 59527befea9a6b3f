"""`danube demo --spark`: orders flow through a pipeline into a Delta table and a topic."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from pydanube.runtime.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pydanube.pipelines.definitions import PipelineDefinition

ORDERS = 5_000
MINUTES = 15
COUNTRIES = ("AT", "DE", "HU", "RO", "RS")


class SparkAccount(Struct, frozen=True, kw_only=True):
    """What became of the orders."""

    published: int
    valid: int
    dead_letters: int
    totals: int
    minutes_closed: int
    seconds: float

    @property
    def lost(self) -> int:
        """Orders that are neither in the table nor among the dead letters."""
        return self.published - self.valid - self.dead_letters


def demonstrate(directory: str, say: Callable[[str], None]) -> SparkAccount:
    """Publish orders, run the pipeline over them twice, and count what arrived."""
    from deltalake import DeltaTable

    from pydanube.pipelines.documents import read_definition
    from pydanube.pipelines.reports import line_of
    from pydanube.pipelines.runner import PipelineRun, check_outcome

    clock = SystemClock()
    started = clock.monotonic_seconds()
    text = files("pydanube.pipelines").joinpath("orders.yml").read_text()
    with _broker(directory) as url:
        say(f"broker at {url}; Spark starts, which takes some seconds")
        given = {"url": url, "root": directory}
        definition, _ = read_definition(text, "orders.yml", {}, given)
        with _session(definition) as spark:
            for part in range(2):
                _publish(url, part, clock.now_ms())
                say(f"published {ORDERS} orders; every acknowledgement means fsynced")
                statuses = PipelineRun(definition, spark, available_now=True).run()
                check_outcome(statuses)
                for each in statuses:
                    say(line_of(each))
        rows = DeltaTable(f"{directory}/totals").to_pyarrow_table().to_pylist()
        closed = _count(url, "/default/orders-per-minute")
        dead = _count(url, "/default/orders-dlq") // 2  # Both flows reject the same orders.
    for row in sorted(rows, key=lambda row: -float(row["amount"]))[:3]:
        say(f"{row['minute']:%H:%M} {row['country']}: {row['orders']} orders, {row['amount']:.2f}")
    return SparkAccount(
        published=2 * ORDERS,
        valid=sum(int(row["orders"]) for row in rows),
        dead_letters=dead,
        totals=len(rows),
        minutes_closed=closed,
        seconds=round(clock.monotonic_seconds() - started, 1),
    )


@contextmanager
def _session(definition: "PipelineDefinition") -> Iterator["SparkSession"]:
    from pydanube.pipelines.runner import start_spark
    from pydanube.spark.ending import cut_off_session, stop_session

    with ExitStack() as stopping:
        try:
            spark = start_spark(definition.pipeline, definition.spark)
            stopping.callback(stop_session, spark)
            yield spark
        except SystemExit:  # The process was told to end, most likely within a call to Java.
            stopping.pop_all()
            cut_off_session()
            raise


@contextmanager
def _broker(directory: str) -> Iterator[str]:
    from pydanube.broker.config import standalone_config
    from pydanube.broker.server import BrokerServer
    from pydanube.runtime.loop_thread import LoopThread

    ports = {"broker.ports.client": 0, "broker.ports.admin": 0}
    config = standalone_config(f"{directory}/broker", overrides=ports)
    thread = LoopThread("demo broker")
    try:
        server = thread.call(BrokerServer.start(config))
        try:
            yield f"http://127.0.0.1:{server.client_port}"
        finally:
            thread.call(server.stop())
    finally:
        thread.stop()


def _publish(url: str, part: int, now_ms: int) -> None:
    from datetime import UTC, datetime

    from pydanube import sync

    rows = []
    for number in range(ORDERS):
        # The second part is newer than the first: what is older than the watermark would be late.
        age_ms = MINUTES * 60_000 * (ORDERS - number) // ORDERS + (1 - part) * MINUTES * 60_000
        when = datetime.fromtimestamp((now_ms - age_ms) / 1000, UTC)
        amount = -1.0 if number % 50 == 49 else 1.0 + number * 7919 % 10_000 / 100
        country = COUNTRIES[number * 31 % 7 % len(COUNTRIES)]
        order = {"order_id": f"o{part}-{number}", "country": country, "amount": amount}
        rows.append({**order, "ordered_at": when.isoformat()})
    with sync.connect(url) as client, client.producer("/default/orders") as producer:
        for first in range(0, ORDERS, 1_000):
            producer.send_batch(rows[first : first + 1_000])


def _count(url: str, topic: str) -> int:
    from pydanube import sync

    with sync.connect(url) as client:
        return int(client.reader(topic).to_arrow().num_rows)


def summary(account: SparkAccount) -> str:
    """Return the account as a sentence."""
    return (
        f"published {account.published} orders: {account.valid} in {account.totals} totals of the "
        f"table, {account.dead_letters} among the dead letters, lost {account.lost}; "
        f"{account.minutes_closed} totals of minutes that are over in the topic; "
        f"{account.seconds:.0f} s"
    )


def show_progress(quiet: bool) -> Callable[[str], None]:
    """Return what prints progress, or swallows it."""
    return (lambda _: None) if quiet else click.echo
