"""Numbers that must not mix, and the stable ids clients keep across a broker's restart."""

from typing import NewType

import xxhash

Offset = NewType("Offset", int)
"""Of a message in its topic: 0, 1, 2 … without gaps."""
JournalPosition = NewType("JournalPosition", int)
"""Of a byte in a broker's journal, counted over all its files."""
TopicId = NewType("TopicId", int)
"""Of one life of a topic: deleted and created again, it gets another."""
SubscriptionId = NewType("SubscriptionId", int)
ProducerId = NewType("ProducerId", int)
ConsumerId = NewType("ConsumerId", int)
BrokerId = NewType("BrokerId", int)

# Clients read ids as signed 64-bit numbers or as doubles, and take 0 for "none".
_STABLE_ID_BITS = 53


def stable_producer_id(topic: str, producer_name: str, salt: int = 0) -> ProducerId:
    """Derive the id a producer of that name has on that topic, on any broker, after any restart.

    `salt` is for the caller that finds the id taken by another name.
    """
    return ProducerId(_stable_id("producer", topic, producer_name, str(salt)))


def stable_consumer_id(
    topic: str, subscription: str, consumer_name: str, salt: int = 0
) -> ConsumerId:
    """Derive the id a consumer of that name has in that subscription; see `stable_producer_id`."""
    return ConsumerId(_stable_id("consumer", topic, subscription, consumer_name, str(salt)))


def _stable_id(*parts: str) -> int:
    # Names hold no NUL, so joining by it keeps ("a", "bc") and ("ab", "c") apart.
    digest = xxhash.xxh3_64_intdigest("\0".join(parts).encode())
    return int(digest % (2**_STABLE_ID_BITS - 1) + 1)
