"""Every method of our services, and how typed handlers and calls meet the handler table."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NoReturn, TypeVar

from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from pydanube.errors import DanubeError
from pydanube.wire.calls import (
    Body,
    Call,
    CallRefused,
    Channel,
    HandlerTable,
    StatusCode,
    StreamHandler,
    UnaryHandler,
)
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.generated import EdgeReplicator_pb2 as edge
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from pydanube.wire.danube.generated import SchemaRegistry_pb2 as schema
from pydanube.wire.danube.status import refusal

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

TELL_DISPLACED = "x-danube-tell-displaced"
"""With ReceiveMessages: the client wants an error, not a clean end, when it loses its name."""


class Method(Struct, Generic[Request, Response], frozen=True):
    """One method: its service, its name, and the messages it carries."""

    service: str
    name: str
    request: type[Request]
    response: type[Response]
    request_stream: bool = False
    response_stream: bool = False

    @property
    def path(self) -> str:
        """Return the path on the wire, such as /danube.HealthCheck/HealthCheck."""
        return f"/{self.service}/{self.name}"


PRODUCER_SERVICE = "danube.ProducerService"
CREATE_PRODUCER = Method(
    PRODUCER_SERVICE, "CreateProducer", api.ProducerRequest, api.ProducerResponse
)
SEND_MESSAGE = Method(PRODUCER_SERVICE, "SendMessage", api.StreamMessage, api.MessageResponse)

CONSUMER_SERVICE = "danube.ConsumerService"
SUBSCRIBE = Method(CONSUMER_SERVICE, "Subscribe", api.ConsumerRequest, api.ConsumerResponse)
RECEIVE_MESSAGES = Method(
    CONSUMER_SERVICE, "ReceiveMessages", api.ReceiveRequest, api.StreamMessage, response_stream=True
)
ACK = Method(CONSUMER_SERVICE, "Ack", api.AckRequest, api.AckResponse)
NACK = Method(CONSUMER_SERVICE, "Nack", api.NackRequest, api.NackResponse)

DISCOVERY = "danube.Discovery"
TOPIC_LOOKUP = Method(DISCOVERY, "TopicLookup", api.TopicLookupRequest, api.TopicLookupResponse)
TOPIC_PARTITIONS = Method(
    DISCOVERY, "TopicPartitions", api.TopicLookupRequest, api.TopicPartitionsResponse
)

HEALTH_SERVICE = "danube.HealthCheck"
HEALTH_CHECK = Method(
    HEALTH_SERVICE, "HealthCheck", api.HealthCheckRequest, api.HealthCheckResponse
)

STORAGE_SERVICE = "danube.StorageService"
LIST_SEGMENT_DESCRIPTORS = Method(
    STORAGE_SERVICE,
    "ListSegmentDescriptors",
    api.ListSegmentDescriptorsRequest,
    api.ListSegmentDescriptorsResponse,
)

AUTH_SERVICE = "danube.AuthService"
AUTHENTICATE = Method(AUTH_SERVICE, "Authenticate", api.AuthRequest, api.AuthResponse)

SCHEMA_REGISTRY = "danube_schema.SchemaRegistry"
REGISTER_SCHEMA = Method(
    SCHEMA_REGISTRY, "RegisterSchema", schema.RegisterSchemaRequest, schema.RegisterSchemaResponse
)
GET_SCHEMA = Method(SCHEMA_REGISTRY, "GetSchema", schema.GetSchemaRequest, schema.GetSchemaResponse)
GET_LATEST_SCHEMA = Method(
    SCHEMA_REGISTRY, "GetLatestSchema", schema.GetLatestSchemaRequest, schema.GetSchemaResponse
)
LIST_VERSIONS = Method(
    SCHEMA_REGISTRY, "ListVersions", schema.ListVersionsRequest, schema.ListVersionsResponse
)
CHECK_COMPATIBILITY = Method(
    SCHEMA_REGISTRY,
    "CheckCompatibility",
    schema.CheckCompatibilityRequest,
    schema.CheckCompatibilityResponse,
)
DELETE_SCHEMA_VERSION = Method(
    SCHEMA_REGISTRY,
    "DeleteSchemaVersion",
    schema.DeleteSchemaVersionRequest,
    schema.DeleteSchemaVersionResponse,
)
SET_COMPATIBILITY_MODE = Method(
    SCHEMA_REGISTRY,
    "SetCompatibilityMode",
    schema.SetCompatibilityModeRequest,
    schema.SetCompatibilityModeResponse,
)
CONFIGURE_TOPIC_SCHEMA = Method(
    SCHEMA_REGISTRY,
    "ConfigureTopicSchema",
    schema.ConfigureTopicSchemaRequest,
    schema.ConfigureTopicSchemaResponse,
)
UPDATE_TOPIC_VALIDATION_POLICY = Method(
    SCHEMA_REGISTRY,
    "UpdateTopicValidationPolicy",
    schema.UpdateTopicValidationPolicyRequest,
    schema.UpdateTopicValidationPolicyResponse,
)
GET_TOPIC_SCHEMA_CONFIG = Method(
    SCHEMA_REGISTRY,
    "GetTopicSchemaConfig",
    schema.GetTopicSchemaConfigRequest,
    schema.GetTopicSchemaConfigResponse,
)
LIST_SUBJECTS = Method(
    SCHEMA_REGISTRY, "ListSubjects", schema.ListSubjectsRequest, schema.ListSubjectsResponse
)

BROKER_ADMIN = "danube_admin.BrokerAdmin"
LIST_BROKERS = Method(BROKER_ADMIN, "ListBrokers", admin.Empty, admin.BrokerListResponse)
GET_LEADER_BROKER = Method(BROKER_ADMIN, "GetLeaderBroker", admin.Empty, admin.BrokerResponse)
LIST_NAMESPACES = Method(BROKER_ADMIN, "ListNamespaces", admin.Empty, admin.NamespaceListResponse)
UNLOAD_BROKER = Method(
    BROKER_ADMIN, "UnloadBroker", admin.UnloadBrokerRequest, admin.UnloadBrokerResponse
)
ACTIVATE_BROKER = Method(
    BROKER_ADMIN, "ActivateBroker", admin.ActivateBrokerRequest, admin.ActivateBrokerResponse
)
GET_CLUSTER_BALANCE = Method(
    BROKER_ADMIN, "GetClusterBalance", admin.ClusterBalanceRequest, admin.ClusterBalanceResponse
)
TRIGGER_REBALANCE = Method(
    BROKER_ADMIN, "TriggerRebalance", admin.RebalanceRequest, admin.RebalanceResponse
)

CLUSTER_ADMIN = "danube_admin.ClusterAdmin"
CLUSTER_STATUS = Method(CLUSTER_ADMIN, "ClusterStatus", admin.Empty, admin.ClusterStatusResponse)
ADD_NODE = Method(CLUSTER_ADMIN, "AddNode", admin.AddNodeRequest, admin.AddNodeResponse)
PROMOTE_NODE = Method(
    CLUSTER_ADMIN, "PromoteNode", admin.PromoteNodeRequest, admin.PromoteNodeResponse
)
REMOVE_NODE = Method(CLUSTER_ADMIN, "RemoveNode", admin.RemoveNodeRequest, admin.RemoveNodeResponse)

NAMESPACE_ADMIN = "danube_admin.NamespaceAdmin"
GET_NAMESPACE_TOPICS = Method(
    NAMESPACE_ADMIN, "GetNamespaceTopics", admin.NamespaceRequest, admin.TopicListResponse
)
GET_NAMESPACE_POLICIES = Method(
    NAMESPACE_ADMIN, "GetNamespacePolicies", admin.NamespaceRequest, admin.PolicyResponse
)
CREATE_NAMESPACE = Method(
    NAMESPACE_ADMIN, "CreateNamespace", admin.NamespaceRequest, admin.NamespaceResponse
)
DELETE_NAMESPACE = Method(
    NAMESPACE_ADMIN, "DeleteNamespace", admin.NamespaceRequest, admin.NamespaceResponse
)

TOPIC_ADMIN = "danube_admin.TopicAdmin"
LIST_NAMESPACE_TOPICS = Method(
    TOPIC_ADMIN, "ListNamespaceTopics", admin.NamespaceRequest, admin.TopicInfoListResponse
)
LIST_BROKER_TOPICS = Method(
    TOPIC_ADMIN, "ListBrokerTopics", admin.BrokerRequest, admin.TopicInfoListResponse
)
CREATE_TOPIC = Method(TOPIC_ADMIN, "CreateTopic", admin.NewTopicRequest, admin.TopicResponse)
CREATE_PARTITIONED_TOPIC = Method(
    TOPIC_ADMIN, "CreatePartitionedTopic", admin.PartitionedTopicRequest, admin.TopicResponse
)
DELETE_TOPIC = Method(TOPIC_ADMIN, "DeleteTopic", admin.TopicRequest, admin.TopicResponse)
UNLOAD_TOPIC = Method(TOPIC_ADMIN, "UnloadTopic", admin.TopicRequest, admin.TopicResponse)
LIST_SUBSCRIPTIONS = Method(
    TOPIC_ADMIN, "ListSubscriptions", admin.TopicRequest, admin.SubscriptionListResponse
)
UNSUBSCRIBE = Method(
    TOPIC_ADMIN, "Unsubscribe", admin.SubscriptionRequest, admin.SubscriptionResponse
)
SET_SUBSCRIPTION_FAILURE_POLICY = Method(
    TOPIC_ADMIN,
    "SetSubscriptionFailurePolicy",
    admin.SetSubscriptionFailurePolicyRequest,
    admin.SubscriptionResponse,
)
GET_SUBSCRIPTION_FAILURE_POLICY = Method(
    TOPIC_ADMIN,
    "GetSubscriptionFailurePolicy",
    admin.GetSubscriptionFailurePolicyRequest,
    admin.GetSubscriptionFailurePolicyResponse,
)
DESCRIBE_TOPIC = Method(
    TOPIC_ADMIN, "DescribeTopic", admin.DescribeTopicRequest, admin.DescribeTopicResponse
)
SET_SUBSCRIPTION_DISPATCH_CONFIG = Method(
    TOPIC_ADMIN,
    "SetSubscriptionDispatchConfig",
    admin.SetSubscriptionDispatchConfigRequest,
    admin.SubscriptionResponse,
)
GET_SUBSCRIPTION_DISPATCH_CONFIG = Method(
    TOPIC_ADMIN,
    "GetSubscriptionDispatchConfig",
    admin.GetSubscriptionDispatchConfigRequest,
    admin.GetSubscriptionDispatchConfigResponse,
)

SECURITY_ADMIN = "danube_admin.SecurityAdmin"
CREATE_ROLE = Method(
    SECURITY_ADMIN, "CreateRole", admin.CreateRoleRequest, admin.CreateRoleResponse
)
GET_ROLE = Method(SECURITY_ADMIN, "GetRole", admin.GetRoleRequest, admin.GetRoleResponse)
LIST_ROLES = Method(SECURITY_ADMIN, "ListRoles", admin.Empty, admin.ListRolesResponse)
DELETE_ROLE = Method(
    SECURITY_ADMIN, "DeleteRole", admin.DeleteRoleRequest, admin.DeleteRoleResponse
)
CREATE_BINDING = Method(
    SECURITY_ADMIN, "CreateBinding", admin.CreateBindingRequest, admin.CreateBindingResponse
)
GET_BINDING = Method(
    SECURITY_ADMIN, "GetBinding", admin.GetBindingRequest, admin.GetBindingResponse
)
LIST_BINDINGS = Method(
    SECURITY_ADMIN, "ListBindings", admin.ListBindingsRequest, admin.ListBindingsResponse
)
LIST_ALL_BINDINGS = Method(
    SECURITY_ADMIN, "ListAllBindings", admin.Empty, admin.ListBindingsResponse
)
DELETE_BINDING = Method(
    SECURITY_ADMIN, "DeleteBinding", admin.DeleteBindingRequest, admin.DeleteBindingResponse
)

EDGE_REPLICATOR_SERVICE = "danube.edge.EdgeReplicatorService"
REGISTER_EDGE = Method(
    EDGE_REPLICATOR_SERVICE, "RegisterEdge", edge.RegisterEdgeRequest, edge.RegisterEdgeResponse
)
EDGE_HEARTBEAT = Method(
    EDGE_REPLICATOR_SERVICE, "EdgeHeartbeat", edge.EdgeHeartbeatRequest, edge.EdgeHeartbeatResponse
)
REPLICATE_DATA = Method(
    EDGE_REPLICATOR_SERVICE,
    "ReplicateData",
    edge.ReplicateBatch,
    edge.ReplicateAck,
    request_stream=True,
    response_stream=True,
)

SUBSCRIPTION_CONTROL = "pydanube.SubscriptionControl"
SEEK = Method(SUBSCRIPTION_CONTROL, "Seek", own.SeekRequest, own.SeekResponse)
CLOSE_PRODUCER = Method(
    SUBSCRIPTION_CONTROL, "CloseProducer", own.CloseProducerRequest, own.CloseProducerResponse
)
CLOSE_CONSUMER = Method(
    SUBSCRIPTION_CONTROL, "CloseConsumer", own.CloseConsumerRequest, own.CloseConsumerResponse
)
LEAVE_SUBSCRIPTION = Method(
    SUBSCRIPTION_CONTROL, "Unsubscribe", own.UnsubscribeRequest, own.UnsubscribeResponse
)
UPDATE_FAILURE_POLICY = Method(
    SUBSCRIPTION_CONTROL,
    "UpdateFailurePolicy",
    own.UpdateFailurePolicyRequest,
    own.FailurePolicyResponse,
)

TOPIC_CONTROL = "pydanube.TopicControl"
SET_MESSAGE_TTL = Method(
    TOPIC_CONTROL, "SetMessageTtl", own.SetMessageTtlRequest, own.SetMessageTtlResponse
)
SET_RETENTION = Method(
    TOPIC_CONTROL, "SetRetention", own.SetRetentionRequest, own.RetentionResponse
)
SET_REPLICAS = Method(TOPIC_CONTROL, "SetReplicas", own.SetReplicasRequest, own.SetReplicasResponse)
GET_RETENTION = Method(
    TOPIC_CONTROL, "GetRetention", own.GetRetentionRequest, own.RetentionResponse
)

SCHEMA_CONTROL = "pydanube.SchemaControl"
DELETE_SUBJECT = Method(
    SCHEMA_CONTROL, "DeleteSubject", own.DeleteSubjectRequest, own.DeleteSubjectResponse
)

METADATA_CONTROL = "pydanube.MetadataControl"
CREATE_BACKUP = Method(
    METADATA_CONTROL, "CreateBackup", own.CreateBackupRequest, own.CreateBackupResponse
)

METHODS: Mapping[str, Method[Any, Any]] = MappingProxyType(
    {method.path: method for method in tuple(globals().values()) if isinstance(method, Method)}
)
"""Every method by its path."""


def unary(
    method: Method[Request, Response],
    handler: Callable[[Request, Call], Awaitable[Response]],
) -> UnaryHandler:
    """Return the bytes handler for a handler over messages.

    A request that cannot be read ends in INVALID_ARGUMENT, a DanubeError in its kind's status.
    """

    async def serve(data: bytes, call: Call) -> bytes:
        request = decode(method.request, data)
        try:
            response = await handler(request, call)
        except DanubeError as error:
            raise refusal(error) from error
        return response.SerializeToString()

    return serve


def serve(
    table: HandlerTable,
    method: Method[Request, Response],
    handler: Callable[[Request, Call], Awaitable[Response]],
) -> None:
    """Serve a unary method with a handler over messages."""
    table.add_unary(method.path, unary(method, handler))


def stream(
    method: Method[Request, Response],
    handler: Callable[[Request, Call], Awaitable[AsyncIterator[Sequence[Body]]]],
) -> StreamHandler:
    """Return the bytes handler for a handler that takes a message and gives encoded replies.

    Errors raised before the iterator is returned refuse the call, as `unary` does.
    """

    async def serve(data: bytes, call: Call) -> AsyncIterator[Sequence[Body]]:
        request = decode(method.request, data)
        try:
            return await handler(request, call)
        except DanubeError as error:
            raise refusal(error) from error

    return serve


def unimplemented(table: HandlerTable, service: str, reason: str) -> None:
    """Refuse all methods of a service; `reason` tells callers why, and what to do instead."""

    async def refuse(data: bytes, call: Call) -> NoReturn:
        raise CallRefused(StatusCode.UNIMPLEMENTED, f"{call.path} is not served: {reason}")

    for path, method in METHODS.items():
        if method.service != service:
            continue
        if method.response_stream:
            table.add_stream(path, refuse)
        else:
            table.add_unary(path, refuse)


async def invoke(
    channel: Channel,
    method: Method[Request, Response],
    request: Request,
    *,
    metadata: Mapping[str, str] | None = None,
    timeout_seconds: float | None = None,
) -> Response:
    """Call a unary method; raises CallRefused."""
    reply = await channel.unary(
        method.path,
        request.SerializeToString(),
        metadata=metadata,
        timeout_seconds=timeout_seconds,
    )
    try:
        return method.response.FromString(reply)
    except DecodeError as error:
        raise CallRefused(
            StatusCode.INTERNAL, f"the reply is not a valid {method.response.DESCRIPTOR.full_name}"
        ) from error


def decode(message: type[Request], data: bytes) -> Request:
    """Return the message, or refuse the call that carried the bytes."""
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise CallRefused(
            StatusCode.INVALID_ARGUMENT,
            f"the request is not a valid {message.DESCRIPTOR.full_name}",
        ) from error
