"""What standard gRPC tools ask of any server, asked by the standard tools themselves."""

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.support.broker_process import BrokerProcess

ENGINES = ["http2", "grpcio"]


@pytest.fixture(scope="module", params=ENGINES)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("introspection")
    with BrokerProcess(directory / "data", engine=request.param) as broker:
        yield broker


@pytest.fixture
def channel(broker: BrokerProcess):
    with grpc.insecure_channel(f"127.0.0.1:{broker.client_port}") as channel:
        yield channel


def test_the_health_service_says_serving(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "danube.ProducerService"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_an_unknown_service_is_not_found(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    with pytest.raises(grpc.RpcError) as refused:
        stub.Check(health_pb2.HealthCheckRequest(service="no.such.Service"), timeout=10)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_watcher_hears_the_present_status_at_once(channel: grpc.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def test_reflection_describes_every_service_of_the_port(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    services = set(database.get_services())
    assert {"danube.ProducerService", "danube.ConsumerService", "danube.Discovery"} <= services
    pool = DescriptorPool(database)
    method = pool.FindServiceByName("danube.ProducerService").FindMethodByName("SendMessage")
    assert method.input_type.full_name == "danube.StreamMessage"
    assert method.input_type.fields_by_name["payload"].number == 3
    with pytest.raises(KeyError):
        pool.FindMessageTypeByName("danube.NoSuchMessage")


def test_the_admin_port_describes_its_own(broker: BrokerProcess) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{broker.admin_port}") as channel:
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert "danube_admin.TopicAdmin" in services
    assert "danube.ProducerService" not in services
