"""From the moment something is sent until a streaming query has it: danube and Spark's socket.

python -m benchmarks.spark.latency [--messages 50] [--rounds 3]

Both queries do the same with what they get: a function of each batch that notes how old every row
is. Messages are durable before they can be read, lines of the socket are not.
"""

import argparse
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.machine import describe_machine
from pydanube.spark import session
from pydanube.spark.ending import stop_session
from pydanube.testing.broker import Broker
from tests.support.spark_topics import Topics

PAUSE_SECONDS = 0.23
"""Not a multiple of anything that sources wait for."""
START_SECONDS_MAX = 60
TOPIC = "/default/latency"

Send = Callable[[bytes], None]


class Query:
    """A query that runs, and how old each row was when its batch came."""

    def __init__(self, frame: Any, column: str) -> None:
        self.ages: list[float] = []
        self._column = column
        self._checkpoint = tempfile.TemporaryDirectory()
        writer = frame.writeStream.foreachBatch(self._take)
        self._query = writer.option("checkpointLocation", self._checkpoint.name).start()

    def _take(self, batch: Any, number: int) -> None:
        rows = batch.selectExpr(f"cast({self._column} as string)").collect()
        now = time.time()
        self.ages += [now - float(row[0]) for row in rows]

    def median_age(self, send: Send, count: int) -> float:
        """Send so many, one after the other; return the median age in seconds."""
        # What comes first finds Java cold, or a query that has not begun to look.
        deadline = time.monotonic() + START_SECONDS_MAX
        while len(self.ages) < 5:
            assert time.monotonic() < deadline, "the query sees nothing"
            send(f"{time.time()}".encode())
            time.sleep(PAUSE_SECONDS)
        self._query.processAllAvailable()
        before = len(self.ages)
        for _ in range(count):
            send(f"{time.time()}".encode())
            time.sleep(PAUSE_SECONDS)
        self._query.processAllAvailable()
        found = self.ages[before:]
        self._query.stop()
        self._checkpoint.cleanup()
        assert len(found) == count, f"{len(found)} of {count} rows"
        return statistics.median(found)


@contextmanager
def lines() -> Iterator[tuple[int, Send]]:
    """Serve lines to whoever connects; gives the port and what sends one."""
    peers: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    peers.append(server.accept()[0])
                except OSError:
                    return

        def send(text: bytes) -> None:
            if peers:
                peers[-1].sendall(text + b"\n")

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield server.getsockname()[1], send
        for peer in peers:
            peer.close()


def danube(spark: Any, url: str, topics: Topics, count: int) -> float:
    options = {"url": url, "topic": TOPIC, "startingOffsets": "latest"}
    query = Query(spark.readStream.format("danube").options(**options).load(), "payload")
    return query.median_age(lambda text: topics.publish_payloads(TOPIC, [text]), count)


def plain_socket(spark: Any, count: int) -> float:
    with lines() as (port, send):
        options = {"host": "127.0.0.1", "port": port}
        query = Query(spark.readStream.format("socket").options(**options).load(), "value")
        return query.median_age(send, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    settings = {"spark.ui.enabled": False, "spark.log.level": "ERROR"}
    spark = session("latency", "local[2,4]", **settings)
    ages: dict[str, list[float]] = {"danube": [], "socket": []}
    with Broker() as broker:
        topics = Topics(broker.url)
        topics.publish_payloads(TOPIC, [b"0"])
        for _ in range(wanted.rounds):
            ages["danube"].append(danube(spark, broker.url, topics, wanted.messages))
            ages["socket"].append(plain_socket(spark, wanted.messages))
        topics.close()
    stop_session(spark)
    print(describe_machine())
    found = {name: statistics.median(each) for name, each in ages.items()}
    for name, each in ages.items():
        print(f"{name}: {', '.join(f'{value:.3f}' for value in each)} s p50")
    print(f"danube to socket: {found['danube'] / found['socket']:.2f}")


if __name__ == "__main__":
    main()
