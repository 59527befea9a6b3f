"""ProducerService: registering producers and taking their messages."""

from functools import partial

from pydanube.errors import DanubeError, InvalidRequest
from pydanube.model.ids import Offset
from pydanube.model.names import check_client_name
from pydanube.model.policies import DispatchStrategy
from pydanube.model.schemas import SchemaReference
from pydanube.observability.metrics import BrokerMetrics
from pydanube.topics.catalog import AccessMode
from pydanube.topics.registration import Registration
from pydanube.wire.calls import Call, CallRefused, HandlerTable, Reply
from pydanube.wire.danube import services
from pydanube.wire.danube.convert import encode_send_response, read_send_request
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.status import send_refusal

_STRATEGIES: dict[int, DispatchStrategy] = {0: "NonReliable", 1: "Reliable"}
_ACCESS_MODES: dict[int, AccessMode] = {0: "Shared", 1: "Exclusive"}


class ProducerServicer:
    """Translates, delegates, translates back."""

    def __init__(self, registration: Registration, metrics: BrokerMetrics) -> None:
        self._registration = registration
        self._metrics = metrics

    def register(self, table: HandlerTable) -> None:
        """Serve the methods of ProducerService."""
        services.serve(table, services.CREATE_PRODUCER, self.create_producer)
        table.add_direct(services.SEND_MESSAGE.path, self.send_message)

    async def create_producer(
        self, request: api.ProducerRequest, call: Call
    ) -> api.ProducerResponse:
        """Let a producer in; the topic is created if it is missing."""
        access_mode = _ACCESS_MODES.get(request.producer_access_mode)
        if access_mode is None:
            raise InvalidRequest(
                f"producer_access_mode {request.producer_access_mode} is neither Shared (0) nor "
                "Exclusive (1)"
            )
        producer = await self._registration.create_producer(
            request.topic_name,
            request.producer_name,
            # An unknown number fits an existing topic; only creating one needs a known strategy.
            _STRATEGIES.get(request.dispatch_strategy),
            access_mode,
            _reference(request.schema_ref) if request.HasField("schema_ref") else None,
        )
        return api.ProducerResponse(
            request_id=request.request_id, producer_id=producer.id, producer_name=producer.name
        )

    def send_message(self, data: bytes, call: Call, reply: Reply) -> None:
        """Take a message; the reply follows once it is as durable as its topic promises."""
        try:
            request = read_send_request(data)
            topic = self._registration.sender(request.producer_id, request.topic_name)
        except CallRefused as refused:
            reply.refuse(refused.code, refused.text)
            return
        except DanubeError as error:
            _refuse(reply, error)
            return
        # Not a nested function: its annotations would be evaluated for every message.
        answer = partial(self._answer, reply, request.request_id, topic.name)
        topic.publish(request.message, answer, request.number)

    def _answer(
        self,
        reply: Reply,
        request_id: int,
        topic: str,
        offset: Offset | None,
        error: DanubeError | None,
    ) -> None:
        if error is not None:
            self._metrics.topic(topic).refused(_refuse(reply, error))
        else:
            reply.send(encode_send_response(request_id, offset))


def _reference(reference: api.SchemaReference) -> SchemaReference:
    named = reference.WhichOneof("version_ref")
    return SchemaReference(
        subject=check_client_name("schema subject", reference.subject),
        version=reference.pinned_version if named == "pinned_version" else None,
        min_version=reference.min_version if named == "min_version" else None,
    )


def _refuse(reply: Reply, error: DanubeError) -> str:
    refused = send_refusal(error)
    reply.refuse(refused.code, refused.text)
    return refused.code.name
