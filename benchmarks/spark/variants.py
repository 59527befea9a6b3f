"""What is measured: scans of a topic, writes into one, and queries that follow one."""

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.spark.topics import TARGET, TOPIC
from pydanube.spark import history
from pydanube.spark.session_settings import BATCH_BYTES_MAX, BYTES_PER_BATCH
from pydanube.spark.sink.frames import MESSAGE_COLUMNS
from tests.support.spark_topics import Topics

STREAM_BATCHES = 10

Variant = Callable[[], float | None]
"""Does something, and returns the seconds that count; None: all it took."""


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Places(NamedTuple):
    """Where the variants find what they read and write.

    A topic is sealed at `sealed` and all tail at `fresh`; `files` are its segments, `keyed_files`
    those of the one with keys, and `rows` how many messages each has.
    """

    sealed: str
    fresh: str
    files: list[str]
    keyed_files: list[str]
    bare_port: int
    rows: int


class Bench:
    """The variants, in one session."""

    def __init__(self, spark: Any, places: Places) -> None:
        self._spark = spark
        self._places = places
        self._rows_read = spark.read.parquet(*places.files)
        self._payloads = self._rows_read.select("payload")
        self._messages = spark.read.parquet(*places.keyed_files).select(*MESSAGE_COLUMNS)

    def scans(self) -> dict[str, Variant]:
        spark, (sealed, fresh, files, _, _, rows) = self._spark, self._places
        start, end = rows // 2, rows // 2 + rows // 100
        bounds = {
            "startingOffsets": f'{{"{TOPIC}": {start}}}',
            "endingOffsets": f'{{"{TOPIC}": {end}}}',
        }
        two = ["offset", "publish_time"]
        return {
            "native": lambda: noop(spark.read.parquet(*files)),
            "history": lambda: noop(history(spark, TOPIC, url=sealed)),
            "tail": lambda: noop(self._source(fresh, segmentAccess="broker")),
            "source": lambda: noop(self._source(sealed)),
            "range": lambda: noop(self._source(sealed, **bounds)),
            "history range": lambda: noop(history(spark, TOPIC, start, end, url=sealed)),
            "two columns": lambda: noop(history(spark, TOPIC, columns=two, url=sealed)),
        }

    def sink(self) -> dict[str, Variant]:
        rows, payloads, messages = self._rows_read, self._payloads, self._messages
        return {
            "rows": lambda: noop(rows),
            "rows into topic": lambda: self._write(rows),
            "rows measured": lambda: self._measured(self._write, rows),
            "payloads": lambda: noop(payloads),
            "topic": lambda: self._write(payloads),
            "payloads measured": lambda: self._measured(self._write, payloads),
            "messages": lambda: noop(messages),
            "messages into topic": lambda: self._write(messages),
            "messages measured": lambda: self._measured(self._write, messages),
        }

    def diagnosis(self) -> dict[str, Variant]:
        """What tells where the time of writes into a topic goes."""
        rows, payloads, messages = self._rows_read, self._payloads, self._messages

        def write_bare() -> None:
            payloads.write.format("bare").option("port", self._places.bare_port).mode(
                "append"
            ).save()

        def discard(frame: Any) -> None:
            frame.write.format("bare").mode("append").save()

        def write_sealing() -> float:
            started = time.perf_counter()
            self._write(payloads, self._places.sealed)
            spent = time.perf_counter() - started
            # What the broker has left to do is not to slow the next variant.
            topics = Topics(self._places.sealed)
            topics.wait_sealed(TARGET)
            topics.close()
            return spent

        return {
            "topic, sealing": write_sealing,
            "bare": write_bare,
            "discarded": lambda: discard(payloads),
            "rows discarded": lambda: discard(rows),
            "rows discarded, measured": lambda: self._measured(discard, rows),
            "messages discarded": lambda: discard(messages),
            "messages discarded, measured": lambda: self._measured(discard, messages),
        }

    def _write(self, frame: Any, url: str | None = None) -> None:
        options = {"url": url or self._places.fresh, "topic": TARGET}
        frame.write.format("danube").options(**options).mode("append").save()

    def _measured(self, work: Callable[[Any], None], frame: Any) -> None:
        """Do something in a session as it is without the promise."""
        promised = self._spark.conf.get(BYTES_PER_BATCH)
        self._spark.conf.set(BYTES_PER_BATCH, str(BATCH_BYTES_MAX))
        work(frame)
        self._spark.conf.set(BYTES_PER_BATCH, promised)

    def streams(self) -> dict[str, Variant]:
        def danube() -> float:
            options = {"url": self._places.sealed, "topic": f"{TOPIC}-live", "pollMs": "20"}
            return self._trigger_seconds(
                self._spark.readStream.format("danube").options(**options).load()
            )

        def rate() -> float:
            options = {"rowsPerBatch": 100}
            return self._trigger_seconds(
                self._spark.readStream.format("rate-micro-batch").options(**options).load()
            )

        return {"danube stream": danube, "rate stream": rate}

    def _source(self, url: str, **options: str) -> Any:
        return self._spark.read.format("danube").options(url=url, topic=TOPIC, **options).load()

    def _trigger_seconds(self, frame: Any) -> float:
        """Run a query while a hundred messages are published every now and then."""
        topics = Topics(self._places.sealed)
        checkpoint = tempfile.mkdtemp()
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        deadline = time.monotonic() + 120
        while len([each for each in query.recentProgress if each["numInputRows"]]) < STREAM_BATCHES:
            assert time.monotonic() < deadline, query.recentProgress
            topics.publish(f"{TOPIC}-live", range(100))
            time.sleep(0.02)
        query.stop()
        topics.close()
        busy = [each for each in query.recentProgress if each["numInputRows"]][2:]
        return statistics.median(each["durationMs"]["triggerExecution"] for each in busy) / 1000
