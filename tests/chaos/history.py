"""What clients and operators write down: a line of JSON for each thing that happened.

Every process writes a file of its own. Times are seconds of the machine's monotonic clock, which
all processes share. An operation ends `ok`, `failed` (it certainly did not happen) or `unknown`.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

BROKER = "broker "
"""What a deed's target begins with when it was done to brokers; their numbers follow."""

Outcome = Literal["ok", "failed", "unknown"]


class Send(Struct, tag="send", array_like=True):
    """A message on its way to the brokers."""

    began: float
    ended: float
    outcome: Outcome
    topic: str
    client: str
    value: str
    key: str
    offset: int | None = None
    numbered: bool = True
    """Its client numbers messages, so that sending one again stores it once."""


class Delivery(Struct, tag="delivery", array_like=True):
    """A message in a consumer's hands."""

    at: float
    topic: str
    subscription: str
    consumer: str
    session: float
    """When the consumer had begun to subscribe, over whatever streams it came."""
    offset: int
    value: str
    key: str


class Ack(Struct, tag="ack", array_like=True):
    """A message reported as done; a `late` one is sent once more after its topic was replaced."""

    began: float
    ended: float
    outcome: Outcome
    topic: str
    subscription: str
    consumer: str
    offset: int
    value: str
    late: bool = False


class Deed(Struct, tag="deed", array_like=True):
    """What an operator or the nemesis did, from its beginning until it was over."""

    began: float
    ended: float
    outcome: Outcome
    kind: str
    target: str = ""
    detail: str = ""


Record = Send | Delivery | Ack | Deed

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def now() -> float:
    """Return the time that all processes of this machine share."""
    return round(time.monotonic(), 6)


class Scribe:
    """Writes the records of one process, each as soon as it is made."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, record: Record) -> None:
        self._file.write(_ENCODER.encode(record) + b"\n")

    def close(self) -> None:
        self._file.close()


@dataclass
class History:
    """Everything that happened, sorted by kind; each kind in the order of its time."""

    sends: list[Send] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    deeds: list[Deed] = field(default_factory=list)

    def add(self, record: Record) -> None:
        match record:
            case Send():
                self.sends.append(record)
            case Delivery():
                self.deliveries.append(record)
            case Ack():
                self.acks.append(record)
            case Deed():
                self.deeds.append(record)

    def sort(self) -> None:
        self.sends.sort(key=lambda send: send.began)
        self.deliveries.sort(key=lambda delivery: delivery.at)
        self.acks.sort(key=lambda ack: ack.began)
        self.deeds.sort(key=lambda deed: deed.began)


class Following:
    """Reads the files of one directory while others still write them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}

    def new(self) -> Iterator[Record]:
        """Return what was written since the last time; half a line waits for its end."""
        for path in sorted(self._directory.glob("*.history")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            for line in text[:whole].splitlines():
                yield _DECODER.decode(line)


def read_history(directory: Path) -> History:
    """Return all that was written below a directory."""
    history = History()
    for record in Following(directory).new():
        history.add(record)
    history.sort()
    return history
