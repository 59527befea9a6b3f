"""Watches who acknowledges what, from inside the brokers: one owner in an epoch, one at a time."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pydanube.storage.topic_log import TopicLog
from tests.support.checkers import Violation


class Owners:
    """Takes note of every acknowledgement, with the epoch under which its broker gave it.

    In one epoch only one broker acknowledges. Once one has done so in a later epoch, no broker
    does in an earlier one any more: at every moment a topic has one owner.
    """

    def __init__(self, name_of: Callable[[object], str]) -> None:
        self._name_of = name_of
        self._owners: dict[tuple[int, int], str] = {}
        self._latest: dict[int, int] = {}
        self.acknowledged = 0
        self.violations: list[Violation] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on for as long as this is open."""
        plain = TopicLog.settle

        def settle(log: TopicLog) -> None:
            before = log.durable_end
            plain(log)
            if log.durable_end > before:
                self._take(log, before)

        TopicLog.settle = settle  # type: ignore[method-assign]
        try:
            yield
        finally:
            TopicLog.settle = plain  # type: ignore[method-assign]

    def _take(self, log: TopicLog, before: int) -> None:
        self.acknowledged += log.durable_end - before
        topic, epoch, broker = log.topic_id, log._index.epoch, self._name_of(log._clock)
        now = f"at {asyncio.get_running_loop().time():.4f}"
        offsets = f"offsets {before} to {log.durable_end} of topic {topic}"
        known = self._owners.setdefault((topic, epoch), broker)
        if known != broker:
            text = f"{offsets} were acknowledged by {broker} {now}, and others by {known}"
            self.violations.append(Violation("two owners", f"in epoch {epoch} {text}"))
        latest = self._latest.get(topic, epoch)
        if epoch < latest:
            text = f"{offsets} were acknowledged by {broker} {now} in epoch {epoch}"
            self.violations.append(
                Violation("deposed owner", f"{text}, when {latest} had begun to acknowledge")
            )
        self._latest[topic] = max(epoch, latest)
