"""What deciding costs: messages a second through each dispatcher, alone on one core.

Every message is made available, delivered, drained from its outbox and acked. Run with
`python -m benchmarks.dispatch`.
"""

import time

from pydanube.dispatch.events import (
    Acked,
    Available,
    ConsumerJoined,
    Deliver,
    DispatchSettings,
    Drained,
    KeysRead,
    ReadKeys,
)
from pydanube.dispatch.factory import create_dispatcher
from pydanube.model.ids import ConsumerId, Offset
from pydanube.model.policies import FailurePolicy, SubscriptionType
from pydanube.model.progress import Progress

CONSUMERS = 3
CREDIT = 1_000
KEYS = [f"key-{number}" for number in range(1_000)]


def messages_per_second(
    kind: SubscriptionType, batch: int, messages: int, window: int = 1_000
) -> float:
    """Return the rate when `batch` messages at a time become available and are acked."""
    settings = DispatchSettings(window=window, policy=FailurePolicy())
    dispatcher = create_dispatcher(kind, True, Progress(Offset(0)), settings, Offset(0))
    handle = dispatcher.handle
    for consumer in range(1, CONSUMERS + 1):
        handle(ConsumerJoined(ConsumerId(consumer), CREDIT), 0)
    drained = 0
    started = time.process_time()
    for end in range(batch, messages + batch, batch):
        now_ms = end // 300
        actions = handle(Available(Offset(end)), now_ms)
        for action in actions:
            if type(action) is Deliver:
                handle(Acked(action.start, action.end), now_ms)
            elif type(action) is ReadKeys:
                # What the answer leads to is answered in its turn.
                actions += handle(_keys_read(action), now_ms)
        # An outbox reports what a stream took in one go, not message by message.
        if end - drained >= CREDIT // 2:
            for consumer in range(1, CONSUMERS + 1):
                handle(Drained(ConsumerId(consumer), end - drained), now_ms)
            drained = end
    elapsed = time.process_time() - started
    assert dispatcher.cursor == end, "messages were left over"
    return messages / elapsed


def _keys_read(read: ReadKeys) -> KeysRead:
    offsets = range(read.start, read.start + read.count)
    return KeysRead(read.start, [KEYS[offset % len(KEYS)] for offset in offsets])


def main() -> None:
    kinds: list[SubscriptionType] = ["Exclusive", "Shared", "Failover", "KeyShared"]
    print(f"{'messages/s':<12}{'one by one':>14}{'by the 100':>14}{'by the 1000':>14}")
    for kind in kinds:
        one = messages_per_second(kind, 1, 200_000)
        hundred = messages_per_second(kind, 100, 300_000)
        thousand = messages_per_second(kind, 1_000, 300_000)
        print(f"{kind:<12}{one:>14,.0f}{hundred:>14,.0f}{thousand:>14,.0f}")


if __name__ == "__main__":
    main()
