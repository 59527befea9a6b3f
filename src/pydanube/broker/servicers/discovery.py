"""Discovery, HealthCheck and the legacy key exchange: how clients find and keep their broker."""

from typing import TYPE_CHECKING

from pydanube.broker.addresses import AdvertisedUrls
from pydanube.errors import InvalidRequest
from pydanube.model.names import namespace_of
from pydanube.observability.metrics import BrokerMetrics
from pydanube.topics.manager import TopicManager
from pydanube.topics.registration import Registration
from pydanube.wire.calls import Call, HandlerTable
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.services import serve

if TYPE_CHECKING:
    from pydanube.cluster.directory import Directory


class DiscoveryServicer:
    """Answers who serves a topic, and whether a client is still wanted."""

    def __init__(
        self,
        topics: TopicManager,
        registration: Registration,
        urls: AdvertisedUrls,
        metrics: BrokerMetrics,
        directory: "Directory | None" = None,
    ) -> None:
        self._metrics = metrics
        self._directory = directory
        self._topics = topics
        self._registration = registration
        self._urls = urls

    def register(self, table: HandlerTable) -> None:
        """Serve the methods of Discovery, HealthCheck and AuthService."""
        serve(table, services.TOPIC_LOOKUP, self.topic_lookup)
        serve(table, services.TOPIC_PARTITIONS, self.topic_partitions)
        serve(table, services.HEALTH_CHECK, self.health_check)
        serve(table, services.AUTHENTICATE, self.authenticate)

    async def topic_lookup(
        self, request: api.TopicLookupRequest, call: Call
    ) -> api.TopicLookupResponse:
        """Name the broker that serves a topic."""
        kind, urls = api.TopicLookupResponse.Connect, self._urls
        topic = self._topics.find(request.topic)
        if topic is not None:
            # Whoever is sent here would only be refused; of a topic that is being handed over,
            # the next owner may have opened it already.
            refused = topic.closing() or topic.doubt()
            if refused is not None:
                raise refused
        else:
            elsewhere = self._elsewhere(request.topic)
            if elsewhere is None:
                self._topics.get(request.topic)  # Raises what is to be said.
            else:
                kind, urls = api.TopicLookupResponse.Redirect, elsewhere
                self._metrics.redirected("owner", namespace_of(request.topic))
        return api.TopicLookupResponse(
            request_id=request.request_id,
            response_type=kind,
            connect_url=urls.connect_url,
            broker_url=urls.broker_url,
            proxy=urls.proxy,
        )

    def _elsewhere(self, topic: str) -> AdvertisedUrls | None:
        """Return where a topic is served, if that is another broker that lives."""
        if self._directory is None:
            return None
        owner = self._directory.owner_now(topic)
        record = self._directory.record_of(owner) if owner is not None else None
        if record is None or record.broker_url == self._urls.broker_url:
            return None
        return AdvertisedUrls(record.broker_url, record.connect_url)

    async def topic_partitions(
        self, request: api.TopicLookupRequest, call: Call
    ) -> api.TopicPartitionsResponse:
        """Name the topic itself, or its partitions in order, or nothing."""
        return api.TopicPartitionsResponse(
            request_id=request.request_id, partitions=self._topics.partitions(request.topic)
        )

    async def health_check(
        self, request: api.HealthCheckRequest, call: Call
    ) -> api.HealthCheckResponse:
        """Tell a client whether to go on or to register anew."""
        if request.client == api.HealthCheckRequest.Producer:
            wanted = self._registration.producer_is_wanted(request.id)
        elif request.client == api.HealthCheckRequest.Consumer:
            wanted = self._registration.consumer_is_wanted(request.id)
        else:
            raise InvalidRequest(f"client type {request.client} is neither Producer nor Consumer")
        status = api.HealthCheckResponse.OK if wanted else api.HealthCheckResponse.CLOSE
        return api.HealthCheckResponse(status=status)

    async def authenticate(self, request: api.AuthRequest, call: Call) -> api.AuthResponse:
        """Hand the key back as the token: clients of the old key exchange go on from there."""
        return api.AuthResponse(token=request.api_key)
