"""Batches so long that they go to the disk past the file cache, on brokers that end suddenly.

Some are killed, on files that lose what was not synced; of others the disk loses its power.
"""

import random
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from pydanube.model.batch import SCHEMA, Batch
from pydanube.model.message import Message
from pydanube.storage.frames import FrameScan
from pydanube.storage.journal.records import Kind
from pydanube.wire.flight.blocking import BlockingFlight, Credentials
from pydanube.wire.flight.descriptors import BatchNumbers, PublishCommand
from tests.support.broker_process import BrokerProcess
from tests.support.cut_disk import CutBroker, cut_disk
from tests.support.flight_peer import FlightPeer
from tests.support.volatile_broker import UNSYNCED_JOURNAL, WITHOUT_LONG_SYNCS

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TOPIC = "/default/long"
COMMAND = PublishCommand(topic=TOPIC, producer="loader", dispatch="reliable")
VOLATILE = [sys.executable, "-m", "tests.support.volatile_broker"]
LIVES = 8
IN_FLIGHT = 6


def batch_of(number: int) -> pa.RecordBatch:
    """One message that tells its number, of one to three megabytes."""
    chance = random.Random(number)
    payload = b"%08d" % number + chance.randbytes(chance.randrange(1_000_000, 3_000_000))
    message = Message(payload=payload, publish_time_ms=number, producer_name="loader")
    return Batch.gather([message]).record_batch()


class Loader:
    """Publishes numbered batches through one life of a broker after the other."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._chance = random.Random(7)
        self.answered = 0

    def live(self) -> None:
        """Send batches from the first unanswered one on; kill the broker before it answers all."""
        connection = BlockingFlight(self._broker.url, Credentials(), 20.0)
        try:
            put = connection.put(COMMAND, SCHEMA)
            for number in range(self.answered, self.answered + IN_FLIGHT):
                put.write(batch_of(number), BatchNumbers(first_sequence=number))
            for _ in range(self._chance.randrange(1, IN_FLIGHT)):
                put.answer()
                self.answered += 1
            self._broker.kill()
        finally:
            connection.close()

    def is_stored(self) -> bool:
        """Tell whether what was answered lies in the topic once, in its order, as it was sent."""
        peer = FlightPeer(self._broker.client_port)
        stored = [payload for rows in peer.read({"topic": TOPIC}) for payload in rows.payloads]
        peer.close()
        sent = [batch_of(number).column("payload")[0].as_py() for number in range(len(stored))]
        return len(stored) >= self.answered and stored == sent


def kinds_in(directory: Path) -> set[int]:
    """Return the kinds of frames in all files of a journal."""
    found = set()
    for path in directory.glob("wal/journal-*.log"):
        data = path.read_bytes()
        found |= {frame.kind for frame in FrameScan(data, int(path.stem[-20:]))}
    return found


def test_long_batches_that_were_answered_survive_kills_and_lie_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", command=VOLATILE) as broker:
        loader = Loader(broker)
        for _ in range(LIVES):
            loader.live()
            broker.start()
            assert loader.is_stored()
        assert broker.terminate() == 0, broker.log_tail()
    assert Kind.PADDING in kinds_in(tmp_path / "data")


def test_syncs_that_are_left_out_are_noticed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", command=[*VOLATILE, WITHOUT_LONG_SYNCS]) as broker:
        loader = Loader(broker)
        for _ in range(LIVES):
            loader.live()
            broker.start()
            if not loader.is_stored():
                return
    pytest.fail("answers without a sync were not noticed")


def test_long_batches_that_were_answered_survive_power_cuts(tmp_path: Path) -> None:
    with cut_disk(tmp_path) as disk:
        with CutBroker(disk) as broker:
            loader = Loader(broker)
            for _ in range(LIVES):
                loader.live()
                broker.start()
                assert loader.is_stored(), broker.log_tail()
            assert broker.terminate() == 0, broker.log_tail()
        assert Kind.PADDING in kinds_in(disk.root / "data")


def test_a_power_cut_shows_a_journal_that_is_not_synced(tmp_path: Path) -> None:
    with (
        cut_disk(tmp_path) as disk,
        CutBroker(disk, command=[*VOLATILE, UNSYNCED_JOURNAL]) as broker,
    ):
        loader = Loader(broker)
        loader.live()
        broker.start()
        assert not loader.is_stored()
        broker.terminate()
