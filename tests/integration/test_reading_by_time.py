"""Readers that begin and end at times."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import pydanube
from pydanube.client.client import grpcio_channel
from pydanube.wire.http2.channel import Http2Channel

TOPIC = "/default/orders"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = 1_769_860_800_000


@pytest.fixture(params=[Http2Channel, grpcio_channel], ids=["http2", "grpcio"])
async def client(
    danube_broker: pydanube.Broker, request: pytest.FixtureRequest
) -> AsyncIterator[pydanube.Client]:
    async with pydanube.connect(danube_broker.url, open_channel=request.param) as client:
        yield client


async def publish(client: pydanube.Client, **how: Any) -> None:
    """One message a minute, from noon on."""
    async with client.producer(TOPIC, **how) as producer:
        await producer.send_batch(
            [
                {"payload": b"%d" % minute, "publish_time": NOON_MS + minute * 60_000}
                for minute in range(10)
            ]
        )


async def minutes(client: pydanube.Client, **bounds: Any) -> list[int]:
    return list(map(int, (await client.reader(TOPIC, **bounds).to_arrow())["payload"].to_pylist()))


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (at(3), at(6), [3, 4, 5]),
        (at(2.5), at(4.5), [3, 4]),
        (f"time:{NOON_MS + 8 * 60_000}", "latest", [8, 9]),
        ("time:2026-01-31T12:08:00Z", "latest", [8, 9]),
        (datetime(2026, 1, 31, 14, 8, tzinfo=timezone(timedelta(hours=2))), "latest", [8, 9]),
        ("earliest", at(2), [0, 1]),
        (4, at(6), [4, 5]),
        (at(7), "offset:8", [7]),
        (at(60), "latest", []),
        (at(-60), at(60), list(range(10))),
        (at(3), at(3), []),
    ],
)
async def test_a_reader_keeps_to_its_times(
    client: pydanube.Client, start: Any, end: Any, expected: list[int]
) -> None:
    await publish(client)
    assert await minutes(client, start=start, end=end) == expected


async def test_each_partition_has_its_own_offsets_of_a_time(client: pydanube.Client) -> None:
    async with client.producer(TOPIC, partitions=3) as producer:
        await producer.send_batch(
            [
                {
                    "payload": b"%d" % minute,
                    "publish_time": NOON_MS + minute * 60_000,
                    "routing_key": f"k{minute % 5}",
                }
                for minute in range(30)
            ]
        )
    assert sorted(await minutes(client, start=at(10), end=at(20))) == list(range(10, 20))


@pytest.mark.parametrize(
    "position",
    [
        -1,
        True,
        "yesterday",
        "time:noon",
        datetime(2026, 1, 31),
        2**63,
        1.5,
        at(-60 * 24 * 365 * 99),
    ],
)
async def test_what_is_no_position_is_refused_at_once(
    client: pydanube.Client, position: Any
) -> None:
    for bounds in ({"start": position}, {"end": position}):
        with pytest.raises(pydanube.InvalidRequest):
            client.reader(TOPIC, **bounds)


async def test_a_time_is_found_after_a_restart(
    tmp_path: Path,
) -> None:
    for round_number in range(2):
        async with (
            pydanube.Broker(str(tmp_path)) as broker,
            pydanube.connect(broker.url) as client,
        ):
            if not round_number:
                await publish(client)
            assert await minutes(client, start=at(3), end=at(5)) == [3, 4]
