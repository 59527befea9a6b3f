"""The clients a plan asks for, each on its host, and everything they say recorded."""

from pydanube.client.brokers import Surroundings
from pydanube.client.client import Client
from pydanube.client.retry import RetryPolicy
from pydanube.runtime.randomness import Randomness, SeededRandomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.network import SimulatedNetwork
from pydanube.wire.calls import Channel
from tests.support.broker_machine import ADMIN_PORT, CLIENT_PORT, HOST
from tests.support.churn import Churner
from tests.support.history import History
from tests.support.operators import Reconfigurer
from tests.support.plain_engine import PlainChannel
from tests.support.plans import (
    CLIENT_HOSTS,
    ConsumerPlan,
    ProducerPlan,
    SubscriptionPlan,
    TopicPlan,
    WorldPlan,
    pick,
)
from tests.support.recorded_channel import ClientMemory, RecordedChannel
from tests.support.workloads import (
    ClientConsumer,
    ClientProducer,
    Ground,
    RawConsumer,
    RawProducer,
    Temper,
)

AUDIT = "audit"


class Population:
    """Makes clients. Each has randomness of its own, so that one more changes no other."""

    def __init__(
        self, seed: int, network: SimulatedNetwork, history: History, *, restless: bool
    ) -> None:
        self._seed = seed
        self._network = network
        self._history = history
        self._restless = restless
        self._memories: dict[str, ClientMemory] = {}
        for name in CLIENT_HOSTS:
            network.host(name)

    def consumer(
        self, topic: TopicPlan, subscription: SubscriptionPlan, plan: ConsumerPlan
    ) -> RawConsumer | ClientConsumer:
        client = f"{subscription.name}/{plan.name}"
        ground = self._ground(client)
        if plan.by_client:
            return ClientConsumer(
                ground,
                lambda: self._client(client),
                topic.name,
                subscription.name,
                plan.name,
                subscription.kind,
                subscription.temper,
                filters=plan.filters,
                think_seconds=subscription.think_seconds,
            )
        return RawConsumer(
            ground,
            topic.name,
            subscription.name,
            plan.name,
            subscription.kind,
            subscription.temper,
            filters=plan.filters,
            think_seconds=subscription.think_seconds,
        )

    def producer(self, topic: TopicPlan, plan: ProducerPlan) -> RawProducer | ClientProducer:
        client = f"{topic.name}/{plan.name}"
        ground = self._ground(client)
        if plan.by_client:
            return ClientProducer(
                ground,
                lambda: self._client(client),
                topic.name,
                plan.name,
                reliable=topic.reliable,
                partitions=topic.partitions,
                count=plan.count,
                keys=topic.keys,
                pause_seconds=plan.pause_seconds,
            )
        return RawProducer(
            ground,
            topic.name,
            plan.name,
            "Reliable" if topic.reliable else "NonReliable",
            count=plan.count,
            keys=topic.keys,
            at_once=plan.at_once,
            pause_seconds=plan.pause_seconds,
        )

    def auditor(self, topic: str) -> RawConsumer:
        """Reads a topic from its beginning, and acks everything."""
        ground = self._ground(f"auditor of {topic}")
        return RawConsumer(ground, topic, AUDIT, AUDIT, "Exclusive", Temper(AUDIT))

    def churner(self, *, knows_at_once: bool = True) -> Churner:
        grounds = self._ground("churner"), self._ground("churner", ADMIN_PORT)
        return Churner(*grounds, self._history, knows_at_once=knows_at_once)

    def reconfigurer(self, plan: WorldPlan) -> Reconfigurer:
        subscriptions = [
            each for topic in plan.topics if topic.reliable for each in topic.each_subscription()
        ]
        return Reconfigurer(self._ground("reconfigurer", ADMIN_PORT), subscriptions)

    def _ground(self, client: str, port: int = CLIENT_PORT) -> Ground:
        return Ground(
            open_channel=lambda: self.channel(client, port),
            randomness=self._chance(client),
            restless=self._restless,
        )

    def channel(self, client: str, port: int = CLIENT_PORT) -> Channel:
        host = self._network.host(pick(self._chance(f"host of {client}"), CLIENT_HOSTS))
        memory = self._memories.setdefault(client, ClientMemory())
        return RecordedChannel(PlainChannel(host, HOST, port), self._history, client, memory)

    def _client(self, client: str) -> Client:
        surroundings = Surroundings(
            open_channel=lambda url: self.channel(client),
            clock=SimulatedClock(),
            randomness=self._chance(f"client {client}"),
            retry=RetryPolicy(),
        )
        return Client(f"http://{HOST}:{CLIENT_PORT}", surroundings)

    def _chance(self, purpose: str) -> Randomness:
        return SeededRandomness(f"{self._seed} {purpose}")
