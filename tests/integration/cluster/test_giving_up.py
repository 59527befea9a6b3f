"""A broker whose journal fails: the others take its topics at once, and know why."""

import asyncio

import pytest

from pydanube import connect
from pydanube.broker.disk_watch import Trouble
from pydanube.cluster.giving_up import CANNOT_WRITE_AGAIN, RECOVERED
from pydanube.cluster.ownership import Ownership
from pydanube.cluster.records import BrokerState
from pydanube.wire.calls import CallRefused
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from tests.support.broker_cluster import BrokerCluster, ClusterBroker

TOPIC = "/default/orders"
SOON_SECONDS = 10.0


async def stop_journal(broker: ClusterBroker) -> None:
    """Let a broker's journal stop, as after a failed write, and wait until it has given up."""
    broker._serving.storage._writer._stop(OSError(5, "Input/output error"))
    async with asyncio.timeout(SOON_SECONDS):
        await broker.server.wait_until_given_up()


async def status(cluster: BrokerCluster, asked: ClusterBroker, broker: object) -> str:
    reply = await cluster.client(asked).call(services.LIST_BROKERS, admin.Empty())
    return next(
        (each.broker_status for each in reply.brokers if each.broker_id == str(broker)), "unknown"
    )


async def publish(url: str, *values: bytes) -> list[int | None]:
    async with connect(url) as client, client.producer(TOPIC) as producer:
        return [(await producer.send(value)).offset for value in values]


async def test_others_take_its_topics_and_say_why(cluster: BrokerCluster) -> None:
    assert await publish(cluster.brokers[0].url, b"0", b"1") == [0, 1]
    owner = await cluster.owned(TOPIC)
    me = owner.id
    others = [each for each in cluster.brokers if each is not owner]
    await stop_journal(owner)
    assert not owner.clustering.membership.is_certain
    assert owner.server._unhealthy() is not None
    await cluster.until(lambda: me not in others[0].clustering.directory.view.brokers)
    await cluster.until(lambda: any(each.topics.find(TOPIC) is not None for each in others))
    assert await publish(others[0].url, b"2") == [2]
    said = await status(cluster, others[0], me)
    assert said.startswith("down: cannot write: the journal in"), said
    assert "Input/output error" in said
    # It comes back, and takes topics again; the second time so soon, it waits for an operator.
    await owner.stop()
    await owner.start()
    await cluster.until(lambda: me in others[0].clustering.directory.view.active())
    assert others[0].clustering.directory.view.state(me).reason == RECOVERED
    await stop_journal(owner)
    await owner.stop()
    await owner.start()
    await cluster.until(lambda: me in others[0].clustering.directory.view.brokers)
    view = others[0].clustering.directory.view
    assert (view.state(me).mode, view.state(me).reason) == ("drained", CANNOT_WRITE_AGAIN)
    assert "drained: could not write" in await status(cluster, others[0], me)
    assert any(f"danube brokers activate {me}" in note for note in owner.server._broker.notes)
    await others[0].clustering.operations.activate(me, "mended")
    await cluster.until(lambda: me in others[0].clustering.directory.view.active())
    assert await status(cluster, others[0], me) == "active"


async def test_who_gives_up_while_it_is_emptied_is_drained(cluster: BrokerCluster) -> None:
    await publish(cluster.brokers[0].url, b"0")
    owner = await cluster.owned(TOPIC)
    me = owner.id
    other = next(each for each in cluster.brokers if each is not owner)
    await other.clustering.operations._set_state(me, BrokerState(mode="draining", reason="unload"))
    await stop_journal(owner)
    await cluster.until(lambda: other.clustering.directory.view.state(me).mode == "drained")


async def test_emptying_a_broker_that_hangs_ends_with_an_error_and_leaves_nothing_behind(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hand_over(ownership: Ownership, *_: object) -> None:
        await released.wait()

    released = asyncio.Event()
    await publish(cluster.brokers[0].url, b"0")
    owner = await cluster.owned(TOPIC)
    other = next(each for each in cluster.brokers if each is not owner)
    await cluster.until(lambda: len(other.clustering.directory.view.active()) == 3)
    monkeypatch.setattr(Ownership, "hand_over", hand_over)
    request = admin.UnloadBrokerRequest(broker_id=str(owner.id), timeout_seconds=1)
    async with asyncio.timeout(SOON_SECONDS):
        with pytest.raises(CallRefused, match="let none of its 1 topics go within 1 s"):
            await cluster.client(other).call(services.UNLOAD_BROKER, request)
    await cluster.until(lambda: other.clustering.directory.view.state(owner.id).mode == "active")
    assert await publish(other.url, b"1") == [1], "it still serves what it has"
    released.set()


async def test_who_gave_up_and_is_removed_is_not_listed_any_more(
    cluster: BrokerCluster, etcd_url: str | None
) -> None:
    if etcd_url is not None:
        return  # Its brokers are no nodes, and are not removed.
    broker, other = cluster.brokers[0], cluster.brokers[1]
    me = broker.id
    await stop_journal(broker)
    await broker.stop()
    await cluster.until(lambda: me in other.clustering.directory.view.lost())
    await cluster.client(other).call(services.REMOVE_NODE, admin.RemoveNodeRequest(node_id=me))
    assert await status(cluster, other, me) == "unknown"


async def test_who_cannot_write_while_it_stops_gives_up_what_it_still_has(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hand_over(ownership: Ownership, *_: object) -> None:
        begun.set()
        await released.wait()

    begun, released = asyncio.Event(), asyncio.Event()
    await publish(cluster.brokers[0].url, b"0")
    owner = await cluster.owned(TOPIC)
    others = [each for each in cluster.brokers if each is not owner]
    server = owner.server
    monkeypatch.setattr(Ownership, "hand_over", hand_over)
    stopping = asyncio.create_task(owner.stop())
    await begun.wait()
    server._broker._serving.storage._writer._stop(OSError(5, "Input/output error"))  # type: ignore[union-attr]
    await cluster.until(lambda: any(each.topics.find(TOPIC) is not None for each in others))
    assert not stopping.done(), "nobody waited for its end"
    released.set()
    await stopping


async def test_who_gives_up_leads_no_more(cluster: BrokerCluster) -> None:
    leader = await cluster.leading()
    await stop_journal(leader)
    others = [each for each in cluster.brokers if each is not leader]
    await cluster.until(lambda: any(each.clustering.reading().leads for each in others))
    assert not leader.clustering.reading().leads


async def test_trouble_that_may_pass_makes_health_bad_while_it_lasts(
    cluster: BrokerCluster,
) -> None:
    broker = cluster.brokers[0].server._broker
    assert broker._disk_watch is not None
    broker._disk_watch.trouble = Trouble(why="slow", is_final=False)
    assert "slow" in str(broker.failure)
    assert not broker.is_ready
