"""Gathers the messages of one tick into one batch, so that many small publishes cost one write."""

from collections.abc import Callable

from pydanube.errors import DanubeError
from pydanube.model.ids import Offset
from pydanube.model.message import Message
from pydanube.runtime.tasks import call_soon

Published = Callable[[Offset | None, DanubeError | None], None]
"""Answers a publish: with its offset (None on best-effort topics), or with why it failed."""

BATCH_MESSAGES_MAX = 4_096
BATCH_BYTES_MAX = 4 * 1024 * 1024


class Gatherer:
    """Collects messages until the event loop has handled what has already arrived."""

    def __init__(self, store: Callable[[list[Message], list[Published]], None]) -> None:
        self._store = store
        self._messages: list[Message] = []
        self._answers: list[Published] = []
        self._bytes = 0

    def add(self, message: Message, answer: Published) -> None:
        """Let the message join the batch of this tick; `answer` follows."""
        if not self._messages:
            call_soon(self.flush)
        self._messages.append(message)
        self._answers.append(answer)
        self._bytes += len(message.payload)
        if len(self._messages) >= BATCH_MESSAGES_MAX or self._bytes >= BATCH_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Store what has gathered now."""
        if self._messages:
            messages, answers = self._messages, self._answers
            self._messages, self._answers, self._bytes = [], [], 0
            self._store(messages, answers)
