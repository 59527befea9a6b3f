"""Flight in a cluster: any broker tells about all topics, and clients read and write at theirs."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from pydanube import connect
from pydanube.model.failure_policies import FailurePolicyChange
from pydanube.model.names import partition_name
from pydanube.spark.brokers import Brokers
from pydanube.spark.options import Access, ReadOptions, Selection
from pydanube.spark.sink.publishing import Numbers, TopicPublisher
from pydanube.spark.source.planning import Piece
from pydanube.spark.source.reading import PieceReader, PieceTask
from pydanube.spark.source.rows import stored_columns
from pydanube.spark.source.topics import Topics
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.flight.descriptors import PublishCommand
from tests.support.broker_cluster import BrokerCluster, ClusterBroker
from tests.support.flight_peer import FlightPeer, call, payload_batch, refusal_of

BASE = "/default/parts"
PARTS = [partition_name(BASE, number) for number in range(3)]
pytestmark = pytest.mark.parametrize("etcd_url", ["raft"], indirect=True)

Connect = Callable[[ClusterBroker], FlightPeer]


@pytest.fixture
async def spread(cluster: BrokerCluster) -> BrokerCluster:
    """A topic with one partition on each broker, as all of them know."""
    await cluster.client(cluster.brokers[0]).create_partitioned(BASE, 3)
    for part, broker in zip(PARTS, cluster.brokers, strict=True):
        await cluster.move(part, broker)
    await all_know(cluster)
    return cluster


async def all_know(cluster: BrokerCluster) -> None:
    owners = {part: (await cluster.owned(part)).id for part in PARTS}
    await cluster.until(
        lambda: all(
            each.clustering.directory.owner_of(part) == owner
            for part, owner in owners.items()
            for each in cluster.brokers
            if each.is_running
        )
    )


@pytest.fixture
async def peer_of(cluster: BrokerCluster) -> AsyncIterator[Connect]:
    peers: list[FlightPeer] = []

    def connect_to(broker: ClusterBroker) -> FlightPeer:
        peers.append(FlightPeer(broker.server.client_port))
        return peers[-1]

    yield connect_to
    for peer in peers:
        await asyncio.to_thread(peer.close)


def places(info: Any) -> dict[str, str]:
    """Return the location of each partition that a FlightInfo has endpoints of."""
    found = {}
    for endpoint in info.endpoints:
        (location,) = endpoint.locations
        found[json.loads(endpoint.app_metadata)["topic"]] = location.uri.decode()
    return found


def location(broker: ClusterBroker) -> str:
    return f"grpc+tcp://127.0.0.1:{broker.server.client_port}"


def follow(endpoint: Any) -> list[bytes]:
    """Read an endpoint where it says, as any client of Flight would."""
    peer = FlightPeer(urlsplit(endpoint.locations[0].uri.decode()).port or 0)
    try:
        return peer.payloads(endpoint.ticket)
    finally:
        peer.close()


def write_at(place: str, part: str, payloads: list[bytes]) -> None:
    peer = FlightPeer(urlsplit(place).port or 0)
    try:
        peer.publish(part, payload_batch(payloads))
    finally:
        peer.close()


async def test_a_stock_client_writes_and_reads_all_partitions_through_one_brokers_word(
    spread: BrokerCluster, peer_of: Connect
) -> None:
    peer = peer_of(spread.brokers[0])
    listed = (await call(peer.topics, "/default/"))[BASE]
    assert places(listed) == {
        part: location(broker) for part, broker in zip(PARTS, spread.brokers, strict=True)
    }
    for number, (part, place) in enumerate(places(listed).items()):
        await call(write_at, place, part, [b"%d-%d" % (number, each) for each in range(10)])
    for broker in spread.brokers:
        plan = await call(peer_of(broker).plan, topic=BASE)
        assert places(plan) == places(listed)
        assert plan.total_records == 30
        read = [payload for each in plan.endpoints for payload in await call(follow, each)]
        assert read == [b"%d-%d" % (part, each) for part in range(3) for each in range(10)]


async def test_a_broker_that_does_not_serve_a_topic_names_the_one_that_does(
    spread: BrokerCluster, peer_of: Connect
) -> None:
    peer, owner = peer_of(spread.brokers[0]), spread.brokers[1]
    assert f"is served by {owner.url}" in await call(refusal_of, peer.payloads, PARTS[1])
    publish = (peer.publish, PARTS[1], payload_batch([b"x"]))
    assert f"is served by {owner.url}" in await call(refusal_of, *publish)
    found = (await call(peer.act, "locate", topics=[BASE]))["topics"]
    assert found == {
        part: {"location": location(broker), "here": broker is spread.brokers[0]}
        for part, broker in zip(PARTS, spread.brokers, strict=True)
    }


async def test_actions_are_about_the_topics_of_all_brokers(
    spread: BrokerCluster, peer_of: Connect
) -> None:
    for number, (part, broker) in enumerate(zip(PARTS, spread.brokers, strict=True)):
        times = pa.array([1_000 * each for each in range(number + 1)], pa.int64())
        rows = payload_batch([b"x"] * (number + 1), publish_time=times)
        await call(peer_of(broker).publish, part, rows, producer="p")
    for broker in spread.brokers:
        peer = peer_of(broker)
        frontier = (await call(peer.act, "frontier", topics=[BASE]))["topics"]
        assert {name: each["frontier"] for name, each in frontier.items()} == {
            part: number + 1 for number, part in enumerate(PARTS)
        }
        matched = (await call(peer.act, "frontier", pattern="/default/pa.*"))["topics"]
        assert matched == frontier
        offsets = (await call(peer.act, "offsets", topics=[BASE], time_ms=1_000))["topics"]
        assert [offsets[part]["offset"] for part in PARTS] == [1, 1, 1]
        await call(peer.act, "property.set", topic=BASE, name="n", value=broker.url)
        for other in spread.brokers:
            kept = partial(peer_of(other).act, "property.get", name="n", pattern=BASE)
            await eventually(kept, {"topics": {BASE: broker.url}})
        for part in PARTS:
            last = await call(peer.act, "producer", topic=part, producer="p")
            assert last["last_sequence"] is None


async def eventually(ask: Callable[[], object], expected: object) -> None:
    """Wait until what a broker learns from others has reached it."""
    async with asyncio.timeout(30):
        while await call(ask) != expected:
            await asyncio.sleep(0.01)


async def test_whoever_waits_for_more_is_woken_by_any_broker(
    spread: BrokerCluster, peer_of: Connect
) -> None:
    waiting = asyncio.create_task(
        call(peer_of(spread.brokers[0]).act, "frontier", topics=[BASE], wait_ms=60_000)
    )
    await call(peer_of(spread.brokers[2]).publish, PARTS[2], payload_batch([b"x"]))
    found = (await asyncio.wait_for(waiting, 30))["topics"]
    assert [found[part]["frontier"] for part in PARTS] == [0, 0, 1]


async def test_cursors_are_refused_as_a_whole_though_several_brokers_keep_them(
    spread: BrokerCluster, peer_of: Connect
) -> None:
    peer = peer_of(spread.brokers[0])
    cursor = {"subscription": "job", "topic": PARTS[2], "position": "earliest"}
    await call(peer.act, "cursor.create", **cursor)
    create = partial(peer.act, "cursor.create", subscription="job", topic=BASE, position="earliest")
    assert "has a subscription job already" in await call(refusal_of, create)
    assert all(
        (topic := broker.topics.find(part)) is not None and not topic.subscriptions
        for part, broker in zip(PARTS[:2], spread.brokers[:2], strict=True)
    )
    created = await call(partial(create, existing="keep"))
    assert list(created["cursors"]) == PARTS
    for part, broker in zip(PARTS, spread.brokers, strict=True):
        await call(peer_of(broker).publish, part, payload_batch([b"x"] * 3))
    positions = {part: number for number, part in enumerate(PARTS)}
    await call(peer.act, "cursor.advance", subscription="job", positions=positions)
    found = await call(peer_of(spread.brokers[1]).act, "cursor.get", subscription="job", topic=BASE)
    assert {part: each["position"] for part, each in found["cursors"].items()} == positions
    one = await call(peer.act, "cursor.get", subscription="job", topic=PARTS[1])
    assert (one["topic"], one["position"]) == (PARTS[1], 1)


async def test_a_topic_that_waits_for_its_broker_is_listed_and_not_planned(
    spread: BrokerCluster, peer_of: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pydanube.broker.servicers.flight_topics.ASK_SECONDS", 0.2)
    first = spread.brokers[0]
    directory = first.clustering.directory
    monkeypatch.setattr(directory, "owner_of", lambda topic: None)
    peer = peer_of(first)
    listed = (await call(peer.topics))[BASE]
    assert (list(places(listed)), listed.total_records) == ([PARTS[0]], -1)
    assert json.loads(listed.app_metadata)["partitions"] == PARTS
    assert "look it up again" in await call(refusal_of, peer.plan, topic=BASE)
    assert await call(partial(peer.plan, topic=PARTS[0])) is not None


# Clients of ours.


async def test_batches_go_to_and_come_from_all_brokers_while_topics_move(
    spread: BrokerCluster,
) -> None:
    async with connect(spread.brokers[0].url) as client:
        async with client.producer(BASE) as producer:
            for turn in range(6):
                rows = payload_batch([b"%d" % each for each in range(turn * 30, turn * 30 + 30)])
                await producer.send_batch(rows)
                await spread.move(PARTS[turn % 3], spread.brokers[(turn + 1 + turn // 3) % 3])
        read: list[bytes] = []
        moved = False
        async for batch in client.reader(BASE).batches():
            read += batch.rows.column("payload").to_pylist()
            if not moved:
                moved = True
                await spread.move(PARTS[2], await another(spread, PARTS[2]))
        assert sorted(map(int, read)) == list(range(180))


async def another(cluster: BrokerCluster, topic: str) -> ClusterBroker:
    owner = await cluster.owned(topic)
    return next(each for each in cluster.brokers if each.is_running and each is not owner)


def access(*brokers: ClusterBroker) -> Access:
    return Access(urls=tuple(each.url for each in brokers), request_timeout_ms=10_000)


class Publishing:
    """A task of Spark's that writes chunks of numbered rows, one at a time."""

    def __init__(self, given: Access, topic: str) -> None:
        command = PublishCommand(topic=topic, producer="task", dispatch="reliable")
        self.publisher = TopicPublisher(Brokers(given), command, 4, lambda: 1)
        self.count = 0

    def send(self, rows: int) -> None:
        numbers = range(self.count, self.count + rows)
        self.count += rows
        self.publisher.send(
            payload_batch([b"%d" % number for number in numbers]),
            Numbers.given(pa.array(numbers, pa.int64())),
        )


def read_piece(given: Access, topic: str, end: int) -> PieceReader:
    selection = Selection(names=(topic,))
    state = Topics(Brokers(given), selection).states()[topic]
    options = ReadOptions(access=given, selection=selection, starting_offsets="earliest")
    piece = Piece(topic=topic, id=state.id, start=0, end=end)
    return PieceReader(options, PieceTask(piece=piece), stored_columns(["payload"]))


def end_of(broker: ClusterBroker, topic: str) -> int:
    served = broker.topics.find(topic)
    return served.log.durable_end if served is not None and served.log is not None else 0


@pytest.mark.parametrize("loses", ["moves", "vanishes"])
async def test_a_task_writes_and_reads_on_where_its_topic_has_gone(
    spread: BrokerCluster, loses: str
) -> None:
    """The answers to some chunks may be lost with the broker: none is stored twice."""
    asked = access(*spread.brokers)
    topic = PARTS[1]
    task = Publishing(asked, topic)
    for _ in range(3):
        await call(task.send, 50)
    await spread.until(lambda: end_of(spread.brokers[1], topic) > 0)
    if loses == "moves":
        await spread.move(topic, spread.brokers[2])
    else:
        await spread.brokers[1].vanish()
    for _ in range(3):
        await call(task.send, 50)
    await call(task.publisher.finish)
    assert task.publisher.stored == 300
    reader = await call(read_piece, asked, topic, 300)
    batches = reader.rows()
    first, some = await call(next, batches)
    if loses == "moves":
        await spread.move(topic, spread.brokers[0])
    rest = await call(list, batches)
    payloads = [each for _, rows in [(first, some), *rest] for each in rows["payload"].to_pylist()]
    assert payloads == [b"%d" % number for number in range(300)]


async def test_subscriptions_of_all_partitions_are_told_by_any_broker(
    spread: BrokerCluster, peer_of: Connect
) -> None:
    """Each partition once, by Flight and by the admin API, with one policy for all of them."""
    async with connect(spread.brokers[0].url) as client:
        change = FailurePolicyChange(poison_policy="DeadLetter")
        policy = await client.change_failure_policy(BASE, "s", change)
        assert policy.dead_letter_topic == f"{BASE}-dlq"
        async with client.consumer(BASE, "s") as consumer:
            told = await consumer.standings()
            assert [each.topic for each in told] == PARTS
            assert {each.failure_policy for each in told} == {policy}
            for broker in spread.brokers:
                found = await call(peer_of(broker).act, "subscriptions", topics=[BASE])
                states = [each["subscriptions"][0]["state"] for each in found["topics"].values()]
                assert states == ["active"] * 3
                admin_client = spread.client(broker)
                listed = await admin_client.call(
                    services.LIST_SUBSCRIPTIONS, admin.TopicRequest(name=BASE)
                )
                assert list(listed.subscriptions) == ["s"]
                assert [each.topic for each in listed.standings] == PARTS
                described = await admin_client.call(
                    services.DESCRIBE_TOPIC, admin.DescribeTopicRequest(name=BASE)
                )
                assert list(described.subscriptions) == ["s"]
                assert (described.name, described.partitions) == (BASE, 3)
                assert [each.topic for each in described.standings] == PARTS
