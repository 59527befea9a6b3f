"""BrokerAdmin, as far as one broker can answer."""

from pydanube.broker.addresses import AdvertisedUrls
from pydanube.errors import NotFound, NotSupported
from pydanube.model.ids import BrokerId
from pydanube.topics.manager import TopicManager
from pydanube.wire.calls import Call, HandlerTable
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.services import serve

_ALONE = "needs a second broker, and this one stands alone"


class BrokerAdminServicer:
    """Answers for a cluster of one."""

    def __init__(
        self,
        topics: TopicManager,
        broker_id: BrokerId,
        urls: AdvertisedUrls,
        admin_url: str,
        metrics_url: str,
    ) -> None:
        self._topics = topics
        self._broker_id = broker_id
        self._urls = urls
        self._admin_url = admin_url
        self._metrics_url = metrics_url

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
        """Describe this broker."""
        info = admin.BrokerInfo(
            broker_id=str(self._broker_id),
            broker_addr=self._urls.broker_url,
            broker_role="Cluster_Leader",
            admin_addr=self._admin_url,
            metrics_addr=self._metrics_url,
            broker_status="active",
        )
        return admin.BrokerListResponse(brokers=[info])

    async def leader_broker(self, request: admin.Empty, call: Call) -> admin.BrokerResponse:
        """Name this broker: it leads itself."""
        return admin.BrokerResponse(leader=str(self._broker_id))

    async def list_namespaces(
        self, request: admin.Empty, call: Call
    ) -> admin.NamespaceListResponse:
        """Name all namespaces."""
        return admin.NamespaceListResponse(namespaces=self._topics.catalog.namespaces())

    async def unload(
        self, request: admin.UnloadBrokerRequest, call: Call
    ) -> admin.UnloadBrokerResponse:
        """Refuse: there is nobody to take the topics."""
        raise NotSupported(f"unloading a broker {_ALONE}")

    async def activate(
        self, request: admin.ActivateBrokerRequest, call: Call
    ) -> admin.ActivateBrokerResponse:
        """Agree that this broker is active."""
        if request.broker_id != str(self._broker_id):
            raise NotFound(f"broker {request.broker_id} is not known; this is {self._broker_id}")
        return admin.ActivateBrokerResponse(success=True)

    async def balance(
        self, request: admin.ClusterBalanceRequest, call: Call
    ) -> admin.ClusterBalanceResponse:
        """Describe a balance that cannot be lost."""
        load = float(len(self._topics))
        info = admin.BrokerLoadInfo(
            broker_id=self._broker_id, load=load, topic_count=len(self._topics)
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
        """Say that there is nothing to move."""
        return admin.RebalanceResponse(success=False, error_message=f"rebalancing {_ALONE}")
