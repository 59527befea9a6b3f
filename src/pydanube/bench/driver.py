"""What a system must offer to be measured: a server that starts, and its client at its best."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from pydanube.bench.results import SystemNotes

Handle = Callable[[list[bytes]], bool]
"""Takes payloads in the order of receiving; False: that was enough."""
Stop = Callable[[], bool]


class Link(Protocol):
    """A client library's connection to one topic, in a process that does nothing else."""

    async def prepare(self, *, consumes: bool) -> None:
        """Connect as a consumer or as a publisher, which creates the topic when it is absent."""

    async def publish(self, payload: bytes, window: int, stop: Stop) -> int:
        """Publish until `stop` says so, never more than `window` unacknowledged.

        Return how many were published, all of them acknowledged.
        """

    async def publish_batches(self, payloads: list[bytes], window: int, stop: Stop) -> int:
        """Likewise, handing over many messages at once; NotSupported if there is no such way."""

    async def send(self, payload: bytes) -> None:
        """Publish one message and return once it is acknowledged; many may be under way."""

    async def consume(self, handle: Handle) -> None:
        """Receive from the beginning of the topic, ack, and return once `handle` has enough.

        What was handled is acked when this returns.
        """

    async def close(self) -> None:
        """Release everything."""


class Server(Protocol):
    """A server that runs."""

    @property
    def url(self) -> str:
        """Where clients reach it."""

    @property
    def pids(self) -> list[int]:
        """Its processes, whose CPU time counts."""

    def stop(self) -> None:
        """End it."""


class System(Protocol):
    """Something to measure."""

    notes: SystemNotes
    link: str
    """Where its Link is found, as module:class; it is made of a URL and the name of a topic."""
    jobs: tuple[str, ...]

    def absence(self) -> str | None:
        """Return in one line why it cannot be measured here; None if it can."""

    def start(self, directory: Path) -> Server:
        """Start a server over an empty directory, and return once it answers."""


def open_link(place: str, url: str, topic: str) -> Link:
    """Make the Link that a system names."""
    module, _, name = place.partition(":")
    factory = getattr(importlib.import_module(module), name)
    return cast(Link, factory(url, topic))  # Whoever names a place vouches for what is there.
