"""BrokerAdmin: who the brokers are, and which of them serve."""

from typing import TYPE_CHECKING

from msgspec import Struct

from pydanube.balance.scoring import Strategy
from pydanube.broker.addresses import AdvertisedUrls
from pydanube.cluster.records import BrokerRecord, BrokerState
from pydanube.errors import InvalidRequest, NotFound, NotSupported
from pydanube.model.ids import BrokerId
from pydanube.topics.manager import TopicManager
from pydanube.wire.calls import Call, HandlerTable
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.services import serve

if TYPE_CHECKING:
    from pydanube.balance.imbalance import Balance
    from pydanube.broker.clustering import Clustering
    from pydanube.cluster.balancing import Balancing

_ALONE = "needs a second broker, and this one stands alone"
_STRATEGY_NAMES: dict[Strategy, str] = {
    "fair": "Fair",
    "balanced": "Balanced",
    "weighted_load": "WeightedLoad",
}
PARALLEL_DEFAULT = 1
TIMEOUT_SECONDS_DEFAULT = 60


class ThisBroker(Struct, frozen=True, kw_only=True):
    """What a broker tells of itself."""

    id: BrokerId
    urls: AdvertisedUrls
    admin_url: str
    metrics_url: str


class BrokerAdminServicer:
    """Answers for the whole cluster, which may be of one."""

    def __init__(
        self, topics: TopicManager, this: ThisBroker, cluster: "Clustering | None" = None
    ) -> None:
        self._topics = topics
        self._this = this
        self._cluster = cluster

    def register(self, table: HandlerTable) -> None:
        """Serve the methods of BrokerAdmin."""
        serve(table, services.LIST_BROKERS, self.list_brokers)
        serve(table, services.GET_LEADER_BROKER, self.leader_broker)
        serve(table, services.LIST_NAMESPACES, self.list_namespaces)
        serve(table, services.UNLOAD_BROKER, self.unload)
        serve(table, services.ACTIVATE_BROKER, self.activate)
        serve(table, services.GET_CLUSTER_BALANCE, self.balance)
        serve(table, services.TRIGGER_REBALANCE, self.rebalance)

    async def list_brokers(self, request: admin.Empty, call: Call) -> admin.BrokerListResponse:
        """Describe every registered broker, and those that gave up and are not back."""
        if self._cluster is None:
            alone = BrokerRecord(
                broker_url=self._this.urls.broker_url,
                connect_url=self._this.urls.connect_url,
                admin_url=self._this.admin_url,
                metrics_url=self._this.metrics_url,
            )
            return admin.BrokerListResponse(
                brokers=[_info(self._this.id, alone, self._this.id, "active")]
            )
        view = self._cluster.directory.view
        infos = [
            _info(broker, record, view.leader, _status(view.state(broker)))
            for broker, record in sorted(view.brokers.items())
        ]
        infos += [
            _info(broker, state.place, None, f"down: cannot write: {state.why}")
            for broker, state in view.lost().items()
            if state.place is not None
        ]
        return admin.BrokerListResponse(brokers=infos)

    async def leader_broker(self, request: admin.Empty, call: Call) -> admin.BrokerResponse:
        """Name the broker that leads."""
        if self._cluster is None:
            return admin.BrokerResponse(leader=str(self._this.id))
        leader = self._cluster.directory.view.leader
        return admin.BrokerResponse(leader=str(leader) if leader is not None else "")

    async def list_namespaces(
        self, request: admin.Empty, call: Call
    ) -> admin.NamespaceListResponse:
        """Name all namespaces."""
        return admin.NamespaceListResponse(namespaces=self._topics.catalog.namespaces())

    async def unload(
        self, request: admin.UnloadBrokerRequest, call: Call
    ) -> admin.UnloadBrokerResponse:
        """Move a broker's topics to others."""
        if self._cluster is None:
            raise NotSupported(f"unloading a broker {_ALONE}")
        drained = await self._cluster.operations.drain(
            _broker_id(request.broker_id),
            include=set(request.namespaces_include),
            exclude=set(request.namespaces_exclude),
            parallel_max=request.max_parallel or PARALLEL_DEFAULT,
            seconds_max=request.timeout_seconds or TIMEOUT_SECONDS_DEFAULT,
            dry_run=request.dry_run,
        )
        return admin.UnloadBrokerResponse(
            started=drained.started,
            total=drained.total,
            succeeded=drained.succeeded,
            failed=len(drained.failed),
            pending=drained.pending,
            failed_topics=drained.failed,
        )

    async def activate(
        self, request: admin.ActivateBrokerRequest, call: Call
    ) -> admin.ActivateBrokerResponse:
        """Let a broker take topics again."""
        broker = _broker_id(request.broker_id)
        if self._cluster is not None:
            await self._cluster.operations.activate(broker, request.reason)
        elif broker != self._this.id:
            raise NotFound(f"broker {broker} is not known; this is {self._this.id}")
        return admin.ActivateBrokerResponse(success=True)

    async def balance(
        self, request: admin.ClusterBalanceRequest, call: Call
    ) -> admin.ClusterBalanceResponse:
        """Describe how even the load is; of one broker alone it always is."""
        if self._cluster is not None and self._cluster.balancing is not None:
            return _balance_message(self._cluster.balancing.balance())
        load = float(len(self._topics))
        info = admin.BrokerLoadInfo(
            broker_id=self._this.id, load=load, topic_count=len(self._topics)
        )
        return admin.ClusterBalanceResponse(
            mean_load=load,
            max_load=load,
            min_load=load,
            broker_count=1,
            brokers=[info],
            assignment_strategy="Fair",
        )

    async def rebalance(
        self, request: admin.RebalanceRequest, call: Call
    ) -> admin.RebalanceResponse:
        """Move topics to a better balance, or say what would move."""
        if self._cluster is not None and self._cluster.balancing is not None:
            return await self._rebalance(self._cluster.balancing, request)
        return _no_moves(f"rebalancing {_ALONE}", dry_run=request.dry_run)

    async def _rebalance(
        self, balancing: "Balancing", request: admin.RebalanceRequest
    ) -> admin.RebalanceResponse:
        moves_max = request.max_moves if request.HasField("max_moves") else None
        decision = balancing.plan(moves_max)
        if not decision.moves:
            return _no_moves(decision.reason, dry_run=request.dry_run)
        moves = decision.moves if request.dry_run else await balancing.rebalance_now(moves_max)
        return admin.RebalanceResponse(
            success=True,
            moves_executed=0 if request.dry_run else len(moves),
            proposed_moves=[
                admin.ProposedMove(
                    topic_name=move.topic,
                    from_broker=move.source,
                    to_broker=move.target,
                    estimated_load=move.estimated_load,
                    reason=move.reason,
                )
                for move in moves
            ],
        )


def _no_moves(reason: str, *, dry_run: bool) -> admin.RebalanceResponse:
    """Answer that nothing moves: that is what a dry run asks, and else a wish not granted."""
    if dry_run:
        return admin.RebalanceResponse(success=True, note=reason)
    return admin.RebalanceResponse(success=False, error_message=reason)


def _balance_message(balance: "Balance") -> admin.ClusterBalanceResponse:
    return admin.ClusterBalanceResponse(
        coefficient_of_variation=balance.coefficient_of_variation,
        mean_load=balance.mean_load,
        max_load=balance.max_load,
        min_load=balance.min_load,
        std_deviation=balance.std_deviation,
        broker_count=balance.broker_count,
        brokers=[
            admin.BrokerLoadInfo(
                broker_id=each.broker,
                load=each.load,
                topic_count=each.topic_count,
                is_overloaded=each.is_overloaded,
                is_underloaded=each.is_underloaded,
            )
            for each in balance.brokers
        ],
        assignment_strategy=_STRATEGY_NAMES[balance.strategy],
    )


def _status(state: BrokerState) -> str:
    return f"{state.mode}: could not write: {state.why}" if state.why else state.mode


def _info(
    broker: BrokerId, record: BrokerRecord, leader: BrokerId | None, mode: str
) -> admin.BrokerInfo:
    return admin.BrokerInfo(
        broker_id=str(broker),
        broker_addr=record.broker_url,
        broker_role="Cluster_Leader" if broker == leader else "Cluster_Follower",
        admin_addr=record.admin_url,
        # Without a scheme, as the reference writes it: its tools put one before it.
        metrics_addr=record.metrics_url.removeprefix("http://"),
        broker_status=mode,
    )


def _broker_id(text: str) -> BrokerId:
    if not text.isascii() or not text.isdigit():
        raise InvalidRequest(f"a broker's id is a number, not {text[:40]!r}")
    return BrokerId(int(text))
