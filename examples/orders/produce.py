"""Publish typed orders of the last quarter of an hour: python produce.py [URL] [COUNT]."""

import random
import sys
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from pydanube import sync


class Order(Struct):
    """What customers want. One in fifty is wrong, as in life."""

    order_id: str
    country: str
    amount: float
    ordered_at: str


def orders(count: int, end: datetime, seed: int = 1) -> list[Order]:
    """Return orders that were given in the quarter of an hour before `end`, oldest first."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        when = end - timedelta(minutes=15) * (1 - number / count)
        amount = -1.0 if number % 50 == 49 else round(draw.lognormvariate(3, 1) + 0.01, 2)
        country = draw.choice(["AT", "DE", "HU", "RO", "RS"])
        found.append(Order(f"o{number}", country, amount, when.isoformat()))
    return found


def main(url: str = "http://127.0.0.1:6650", count: str = "5000") -> None:
    """Publish them."""
    made = orders(int(count), datetime.now(UTC))
    with sync.connect(url) as client, client.producer("/default/orders") as producer:
        for first in range(0, len(made), 1000):
            rows = [
                {name: getattr(order, name) for name in order.__struct_fields__}
                for order in made[first : first + 1000]
            ]
            producer.send_batch(rows)
    print(f"published {len(made)} orders to /default/orders")


if __name__ == "__main__":
    main(*sys.argv[1:])
