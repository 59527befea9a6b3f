"""Where tasks of Spark read and write: at the broker that serves the topic, wherever it goes."""

from collections.abc import Iterator
from typing import Any

import pytest
from typing_extensions import override

from pydanube.errors import InvalidRequest, NotFound, Unavailable
from pydanube.spark import brokers
from pydanube.spark.brokers import Brokers, Patience
from pydanube.spark.options import Access
from pydanube.wire.flight.descriptors import LocateAnswer, TopicPlace

TOPIC = "/default/t"


class FakeBroker:
    def __init__(self, cluster: "FakeCluster", url: str) -> None:
        self.cluster = cluster
        self.url = url

    def act(self, name: str, body: Any, answer: type, wait_ms: int = 0) -> LocateAnswer:
        assert name == "locate"
        self.cluster.asked.append(self.url)
        self.cluster.check(self.url)
        if self.cluster.owner is None:
            raise NotFound("there is no such topic")
        place = TopicPlace(location=self.cluster.owner, here=self.cluster.owner == self.url)
        return LocateAnswer(topics={TOPIC: place})

    def work(self) -> str:
        self.cluster.check(self.url)
        if self.cluster.owner not in (None, self.url):
            raise Unavailable(f"topic {TOPIC} is served by {self.cluster.owner}")
        return self.url


class FakeCluster(Brokers):
    """Brokers by name, one of which serves the topic."""

    def __init__(self, *urls: str, owner: str | None) -> None:
        super().__init__(Access(urls=urls, request_timeout_ms=1_000))
        self.owner = owner
        self.dead: set[str] = set()
        self.asked: list[str] = []

    def check(self, url: str) -> None:
        if url in self.dead:
            raise Unavailable(f"{url} is away")

    @override
    def _connect(self, url: str) -> Any:
        return FakeBroker(self, url)

    def work(self) -> str:
        return self.once(_work, TOPIC)


def _work(broker: Any) -> str:
    found: str = broker.work()
    return found


def test_a_topic_is_looked_up_once_and_used_where_it_is() -> None:
    cluster = FakeCluster("a", owner="b")
    assert [cluster.work(), cluster.work()] == ["b", "b"]
    assert cluster.asked == ["a"]
    assert cluster.connection().url == "a"


def test_the_connection_at_hand_is_used_where_it_serves_the_topic() -> None:
    cluster = FakeCluster("a", owner="a")
    assert cluster.work() == "a"
    assert cluster._serving[TOPIC] is cluster.connection()


def test_a_topic_that_has_moved_is_looked_up_again() -> None:
    cluster = FakeCluster("a", owner="b")
    cluster.work()
    cluster.owner = "c"
    with pytest.raises(Unavailable, match="served by c"):
        cluster.work()
    assert cluster.work() == "c"


def test_a_stream_that_ends_by_a_move_looks_the_topic_up_again() -> None:
    cluster = FakeCluster("a", owner="b")

    def rows(broker: Any) -> Iterator[str]:
        yield broker.work()
        cluster.owner = "c"
        yield broker.work()

    stream = cluster.stream(rows, TOPIC)
    assert next(stream) == "b"
    with pytest.raises(Unavailable):
        next(stream)
    assert cluster.work() == "c"


def test_brokers_that_were_heard_of_are_asked_when_the_given_one_is_away() -> None:
    cluster = FakeCluster("a", owner="b")
    cluster.work()
    cluster.dead, cluster.owner = {"a"}, "c"
    with pytest.raises(Unavailable, match="served by c"):
        cluster.work()
    with pytest.raises(Unavailable, match="a is away"):
        cluster.work()
    assert cluster.work() == "c"
    assert cluster.connection().url == "b"


def test_a_topic_that_does_not_exist_is_left_to_any_broker_and_not_remembered() -> None:
    cluster = FakeCluster("a", owner=None)
    assert cluster.work() == "a"
    cluster.owner = "b"
    assert cluster.work() == "b"


def test_what_cannot_be_mended_by_looking_again_leaves_everything_as_it_is() -> None:
    cluster = FakeCluster("a", owner="b")
    cluster.work()

    def refuse(broker: Any) -> None:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        cluster.once(refuse, TOPIC)
    cluster.work()
    assert cluster.asked == ["a"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "FIRST_LOOK", Patience(give_up_seconds=0.3))


@pytest.mark.usefixtures("hasty")
def test_nobody_at_the_given_addresses_is_told_soon_with_the_remedy() -> None:
    cluster = FakeCluster("a", "b", owner="a")
    cluster.dead = {"a", "b"}
    with pytest.raises(Unavailable, match=r"no broker answers at a, b: .* is away\. Look closer"):
        cluster.look_for("Look closer")
    assert set(cluster.asked) == {"a", "b"}
    cluster.dead = {"a"}
    cluster.look_for("Look closer")


@pytest.mark.usefixtures("hasty")
def test_brokers_that_were_there_are_not_looked_for_again() -> None:
    cluster = FakeCluster("a", owner=None)  # It knows no topic, and so it is there.
    cluster.look_for("Look closer")
    cluster.dead = {"a"}
    cluster.look_for("Look closer")
    assert cluster.asked == ["a"]
