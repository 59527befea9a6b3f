"""Plays transcripts of a dispatcher: what happens above `----`, what it decides below.

A block is a list of commands, `----`, and the decisions they led to; an empty line ends it. `#`
begins a comment. Offsets are single, 7, or ranges with both ends, 7-9.

    dispatcher Shared [best-effort] [window=10] [rate=5] [policy fields …]
    join CONSUMER [credit=100] [filters=a*,b?]     leave CONSUMER     remove CONSUMER
    available COUNT | publish KEY …                drained CONSUMER COUNT
    ack OFFSETS     nack OFFSETS [delay=MS] [reason=WORD]     skipped OFFSETS
    postponed OFFSETS MS (until that much later)   expired OFFSETS     expired-below OFFSET
    clock-moved MS  seek OFFSET
    stored OFFSET   not-stored OFFSET              configure [window=…] [policy fields …]
    pass MS         wake (pass time until the dispatcher asked to be woken)
    later MS (time passes, but the dispatcher is not told)
    unreadable      readable (what a question for keys is answered with)
    restart         show
"""

from collections.abc import Callable, Iterator

import msgspec

from pydanube.dispatch.events import (
    Acked,
    Action,
    Available,
    ClockMoved,
    Configured,
    ConsumerJoined,
    ConsumerLeft,
    ConsumerRemoved,
    Count,
    DeadLetter,
    DeadLetterStored,
    Deliver,
    Discard,
    DispatchSettings,
    Drained,
    Event,
    Expired,
    ExpiredBelow,
    KeysRead,
    Nacked,
    Observed,
    Postponed,
    ReadKeys,
    SeekTo,
    Settle,
    Skipped,
    TimePassed,
    Unsent,
)
from pydanube.dispatch.factory import create_dispatcher
from pydanube.model.ids import ConsumerId, Offset
from pydanube.model.policies import FailurePolicy, SubscriptionType
from pydanube.model.progress import Progress, ProgressChange
from pydanube.storage.journal.progress import FoldedProgress

SEPARATOR = "----"


def rewritten(text: str) -> str:
    """Return the transcript with the decisions that are made now."""
    transcript = Transcript()
    blocks = [block for block in text.strip().split("\n\n") if block]
    return "\n\n".join(_played(block, transcript) for block in blocks) + "\n"


def _played(block: str, transcript: "Transcript") -> str:
    commands: list[str] = []
    for line in block.splitlines():
        if line == SEPARATOR:
            break
        commands.append(line)
    if all(line.startswith("#") for line in commands):
        return block
    decisions = [
        decision
        for line in commands
        if not line.startswith("#")
        for decision in transcript.play(line)
    ]
    return "\n".join([*commands, SEPARATOR, *(decisions or ["nothing"])])


class Transcript:
    """One dispatcher, its log, its clock, and what would be durable."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.keys: list[str] = []
        self.is_readable = True
        self.folded = FoldedProgress(Progress(Offset(0)))

    def play(self, line: str) -> Iterator[str]:
        """Carry out one command and tell what the dispatcher decides."""
        name, *words = line.split()
        command: Callable[..., Iterator[str]] = getattr(self, "do_" + name.replace("-", "_"))
        return command(*words)

    def do_dispatcher(self, kind: SubscriptionType, *words: str) -> Iterator[str]:
        self.kind = kind
        self.is_reliable = "best-effort" not in words
        options = [word for word in words if word != "best-effort"]
        self.settings = _settings(DispatchSettings(window=10, policy=FailurePolicy()), options)
        self.dispatcher = create_dispatcher(
            kind, self.is_reliable, Progress(Offset(0)), self.settings, Offset(0)
        )
        yield from ()

    def do_join(self, consumer: str, *words: str) -> Iterator[str]:
        options = _options(words)
        filters = tuple(options["filters"].split(",")) if "filters" in options else ()
        credit = int(options.get("credit", "100"))
        return self.feed(ConsumerJoined(ConsumerId(int(consumer)), credit, filters))

    def do_unsent(self, consumer: str, *offsets: str) -> Iterator[str]:
        return self.feed(Unsent(ConsumerId(int(consumer)), tuple(map(_range, offsets))))

    def do_leave(self, consumer: str) -> Iterator[str]:
        return self.feed(ConsumerLeft(ConsumerId(int(consumer))))

    def do_remove(self, consumer: str) -> Iterator[str]:
        return self.feed(ConsumerRemoved(ConsumerId(int(consumer))))

    def do_drained(self, consumer: str, count: str) -> Iterator[str]:
        return self.feed(Drained(ConsumerId(int(consumer)), int(count)))

    def do_available(self, count: str) -> Iterator[str]:
        return self.do_publish(*["-"] * int(count))

    def do_publish(self, *keys: str) -> Iterator[str]:
        start = len(self.keys)
        self.keys += keys
        if self.kind == "KeyShared" and not self.is_reliable:
            return self.feed(KeysRead(Offset(start), keys))
        return self.feed(Available(Offset(len(self.keys))))

    def do_ack(self, offsets: str) -> Iterator[str]:
        return self.feed(Acked(*_range(offsets)))

    def do_nack(self, offsets: str, *words: str) -> Iterator[str]:
        options = _options(words)
        delay_ms = int(options.get("delay", "0"))
        return self.feed(Nacked(*_range(offsets), delay_ms, options.get("reason")))

    def do_skipped(self, offsets: str) -> Iterator[str]:
        return self.feed(Skipped(*_range(offsets)))

    def do_postponed(self, offsets: str, ms: str) -> Iterator[str]:
        return self.feed(Postponed(*_range(offsets), self.now_ms + int(ms)))

    def do_expired(self, offsets: str) -> Iterator[str]:
        return self.feed(Expired(*_range(offsets)))

    def do_expired_below(self, offset: str) -> Iterator[str]:
        return self.feed(ExpiredBelow(Offset(int(offset))))

    def do_clock_moved(self, ms: str) -> Iterator[str]:
        return self.feed(ClockMoved(int(ms)))

    def do_seek(self, offset: str) -> Iterator[str]:
        self.folded = FoldedProgress(Progress(Offset(int(offset))))
        return self.feed(SeekTo(Offset(int(offset))))

    def do_stored(self, offset: str) -> Iterator[str]:
        return self.feed(DeadLetterStored(Offset(int(offset)), True))

    def do_not_stored(self, offset: str) -> Iterator[str]:
        return self.feed(DeadLetterStored(Offset(int(offset)), False))

    def do_configure(self, *words: str) -> Iterator[str]:
        self.settings = _settings(self.settings, words)
        return self.feed(Configured(self.settings))

    def do_pass(self, ms: str) -> Iterator[str]:
        self.now_ms += int(ms)
        return self.feed(TimePassed())

    def do_later(self, ms: str) -> Iterator[str]:
        self.now_ms += int(ms)
        yield from ()

    def do_wake(self) -> Iterator[str]:
        wake_at_ms = self.dispatcher.wake_at_ms
        if wake_at_ms is None:
            yield "nothing waits for time"
            return
        yield f"{wake_at_ms - self.now_ms} ms later"
        self.now_ms = wake_at_ms
        yield from self.feed(TimePassed())

    def do_unreadable(self) -> Iterator[str]:
        self.is_readable = False
        yield from ()

    def do_readable(self) -> Iterator[str]:
        self.is_readable = True
        yield from ()

    def do_restart(self) -> Iterator[str]:
        progress = self.folded.whole()
        seen_end = Offset(len(self.keys))
        self.dispatcher = create_dispatcher(
            self.kind, self.is_reliable, progress, self.settings, seen_end
        )
        yield f"resume at {progress.cursor}"
        yield from self.feed(Available(Offset(len(self.keys))))

    def do_show(self) -> Iterator[str]:
        dispatcher = self.dispatcher
        yield (
            f"cursor {dispatcher.cursor}, in flight {dispatcher.in_flight_count}, "
            f"waiting {dispatcher.waiting_count}, blocked {dispatcher.blocked_count}"
            + (f", delayed {dispatcher.delayed_count}" if dispatcher.delayed_count else "")
        )

    def feed(self, event: Event) -> Iterator[str]:
        """Feed one event, and the answers to what the dispatcher asks for."""
        events = [event]
        while events:
            before = self.dispatcher.cursor
            for action in self.dispatcher.handle(events.pop(0), self.now_ms):
                yield _told(action)
                self._record(action)
                if isinstance(action, ReadKeys):
                    keys = self.keys[action.start : action.start + action.count]
                    events.append(KeysRead(action.start, keys if self.is_readable else ()))
            if self.is_reliable and self.dispatcher.cursor != before:
                yield f"cursor {self.dispatcher.cursor}"

    def _record(self, action: Action) -> None:
        if isinstance(action, Settle):
            self.folded.apply(ProgressChange(settled=((action.start, action.end),)))
        elif isinstance(action, Count):
            change = (action.start, action.end, action.attempts)
            self.folded.apply(ProgressChange(attempts=(change,)))


def _told(action: Action) -> str:
    match action:
        case Deliver(consumer, start, end, attempt):
            return f"deliver {_span(start, end)} to {consumer}, attempt {attempt}"
        case Settle(start, end):
            return f"settle {_span(start, end)}"
        case Count(start, end, attempts):
            return f"count {_span(start, end)}: {attempts}"
        case DeadLetter(offset, attempts, reason):
            return f"dead-letter {offset} after {attempts}: {reason}"
        case ReadKeys(start, count):
            return f"read keys of {_span(start, start + count)}"
        case Discard(start, end):
            return f"discard {_span(start, end)}"
        case Observed(what, count):
            return f"observe {what} {count}"


def _span(start: int, end: int) -> str:
    return str(start) if end == start + 1 else f"{start}-{end - 1}"


def _range(offsets: str) -> tuple[Offset, Offset]:
    first, _, last = offsets.partition("-")
    return Offset(int(first)), Offset(int(last or first) + 1)


def _options(words: tuple[str, ...] | list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def _settings(settings: DispatchSettings, words: tuple[str, ...] | list[str]) -> DispatchSettings:
    options = _options(words)
    window = int(options.pop("window", settings.window))
    rate = options.pop("rate", settings.rate_per_second)
    fields = msgspec.structs.asdict(settings.policy) | options
    policy = msgspec.convert(fields, FailurePolicy, strict=False)
    rate_per_second = None if rate in (None, "none") else int(rate)
    return DispatchSettings(window=window, policy=policy, rate_per_second=rate_per_second)
