"""The numbers on the wire never change: stock clients were compiled with them."""

import subprocess
import sys
from pathlib import Path

import pytest

from pydanube.wire.danube.generated import (
    DanubeAdmin_pb2,
    DanubeApi_pb2,
    EdgeReplicator_pb2,
    SchemaRegistry_pb2,
)

# A trailing ? is explicit presence; everything is in the order of the specification.
FIELDS = {
    "danube.ProducerRequest": "1 request_id uint64, 2 producer_name string, 3 topic_name string, "
    "4 schema_ref message, 5 producer_access_mode enum, 6 dispatch_strategy enum",
    "danube.SchemaReference": "1 subject string, 2 use_latest bool?, 3 pinned_version uint32?, "
    "4 min_version uint32?",
    "danube.ProducerResponse": "1 request_id uint64, 2 producer_id uint64, 3 producer_name string",
    "danube.MessageResponse": "1 request_id uint64, 100 topic_offset uint64?",
    "danube.ConsumerRequest": "1 request_id uint64, 2 topic_name string, 3 consumer_name string, "
    "4 subscription string, 5 subscription_type enum, 6 key_filters string*, "
    "100 start_position string?",
    "danube.ConsumerResponse": "1 request_id uint64, 2 consumer_id uint64, 3 consumer_name string",
    "danube.ReceiveRequest": "1 request_id uint64, 2 consumer_id uint64",
    "danube.StreamMessage": "1 request_id uint64, 2 msg_id message, 3 payload bytes, "
    "4 publish_time uint64, 5 producer_name string, 6 subscription_name string, "
    "7 attributes message*, 8 schema_id uint64?, 9 schema_version uint32?, 10 routing_key string?, "
    "100 producer_sequence uint64?, 101 previous_sequence uint64?, 102 producer_session uint64?",
    "danube.MsgID": "1 producer_id uint64, 2 topic_name string, 3 broker_addr string, "
    "5 topic_offset uint64",
    "danube.AckRequest": "1 request_id uint64, 2 msg_id message, 3 subscription_name string",
    "danube.AckResponse": "1 request_id uint64",
    "danube.NackRequest": "1 request_id uint64, 2 msg_id message, 3 subscription_name string, "
    "4 delay_ms uint64?, 5 reason string?",
    "danube.NackResponse": "1 request_id uint64",
    "danube.TopicLookupRequest": "1 request_id uint64, 2 topic string",
    "danube.TopicLookupResponse": "3 request_id uint64, 4 response_type enum, "
    "5 connect_url string, 6 broker_url string, 7 proxy bool",
    "danube.TopicPartitionsResponse": "1 request_id uint64, 2 partitions string*",
    "danube.HealthCheckRequest": "1 request_id uint64, 2 client enum, 3 id uint64",
    "danube.HealthCheckResponse": "1 status enum",
    "danube.SegmentDescriptorProto": "1 segment_id string, 2 start_offset uint64, "
    "3 end_offset uint64, 4 size uint64, 5 etag string, 6 created_at uint64",
    "danube.AuthRequest": "1 api_key string",
    "danube.AuthResponse": "1 token string",
    "danube_schema.RegisterSchemaRequest": "1 subject string, 2 schema_type string, "
    "3 schema_definition bytes, 4 description string, 5 created_by string, 6 tags string*",
    "danube_schema.RegisterSchemaResponse": "1 schema_id uint64, 2 version uint32, "
    "3 is_new_version bool, 4 fingerprint string",
    "danube_schema.GetSchemaRequest": "1 schema_id uint64, 2 version uint32?",
    "danube_schema.GetSchemaResponse": "1 schema_id uint64, 2 version uint32, 3 subject string, "
    "4 schema_type string, 5 schema_definition bytes, 6 description string, 7 created_at uint64, "
    "8 created_by string, 9 tags string*, 10 fingerprint string, 11 compatibility_mode string",
    "danube_schema.SchemaVersionInfo": "1 version uint32, 2 created_at uint64, "
    "3 created_by string, 4 description string, 5 fingerprint string, 6 schema_id uint64",
    "danube_admin.NewTopicRequest": "1 name string, 2 schema_subject string?, "
    "3 dispatch_strategy enum, 100 durability string?",
    "danube_admin.PartitionedTopicRequest": "1 base_name string, 2 partitions uint32, "
    "3 schema_subject string?, 4 dispatch_strategy enum, 100 durability string?",
    "danube_admin.DescribeTopicResponse": "1 name string, 2 subscriptions string*, "
    "3 broker_id string, 4 delivery string, 5 schema_subject string?, 6 schema_id uint64?, "
    "7 schema_version uint32?, 8 schema_type string?, 9 compatibility_mode string?, "
    "100 durability string?, 101 partitions uint32?, 102 standings message*",
    "danube_admin.SubscriptionFailurePolicy": "1 max_redelivery_count uint32, "
    "2 ack_timeout_ms uint64, 3 base_redelivery_delay_ms uint64, 4 max_redelivery_delay_ms uint64, "
    "5 backoff_strategy enum, 6 dead_letter_topic string?, 7 poison_policy enum",
    "danube_admin.GetSubscriptionFailurePolicyResponse": "1 failure_policy message, "
    "2 subscription_type int32, 100 is_default bool, 101 subscription_exists bool",
    "danube_admin.BrokerInfo": "1 broker_id string, 2 broker_addr string, 3 broker_role string, "
    "4 admin_addr string, 5 metrics_addr string, 6 broker_status string",
    "danube_admin.TopicInfo": "1 name string, 2 broker_id string, 3 delivery string",
    "danube_admin.ClusterStatusResponse": "1 leader_id uint64, 2 current_term uint64, "
    "3 last_applied uint64, 4 voters uint64*, 5 learners uint64*, 6 self_node_id uint64, "
    "7 raft_addr string",
    "danube_admin.UnloadBrokerRequest": "1 broker_id string, 2 max_parallel uint32, "
    "3 namespaces_include string*, 4 namespaces_exclude string*, 5 dry_run bool, "
    "6 timeout_seconds uint32",
    "danube_admin.ClusterBalanceResponse": "1 coefficient_of_variation double, "
    "2 mean_load double, 3 max_load double, 4 min_load double, 5 std_deviation double, "
    "6 broker_count uint32, 7 brokers message*, 8 assignment_strategy string",
    "danube_admin.BindingDefinition": "1 id string, 2 principal_type string, "
    "3 principal_name string, 4 role_names string*, 5 scope string, 6 resource_name string",
    "danube.edge.TopicRegistrationResult": "1 topic_name string, 2 topic_created bool, "
    "3 schema_resolved bool, 4 schema message, 5 error string",
    "danube.edge.ReplicateBatch": "1 topic_name string, 2 messages message*, "
    "3 batch_last_offset uint64",
}

ENUMS = {
    "danube.ProducerAccessMode": "Shared Exclusive",
    "danube.DispatchStrategy": "NonReliable Reliable",
    "danube.ConsumerRequest.SubscriptionType": "Exclusive Shared Failover KeyShared",
    "danube.TopicLookupResponse.LookupType": "Redirect Connect Failed",
    "danube.HealthCheckRequest.ClientType": "Producer Consumer",
    "danube.HealthCheckResponse.ClientStatus": "OK CLOSE",
    "danube_admin.DispatchStrategy": "NonReliable Reliable",
    "danube_admin.SubscriptionBackoffStrategy": "Fixed Exponential",
    "danube_admin.SubscriptionPoisonPolicy": "DeadLetter Block Drop",
    "danube.edge.EdgeChangeType": "SCHEMA_UPDATED SCHEMA_REMOVED TOPIC_REMOVED",
}

MODULES = (DanubeApi_pb2, SchemaRegistry_pb2, DanubeAdmin_pb2, EdgeReplicator_pb2)
TYPE_NAMES = {
    1: "double",
    4: "uint64",
    5: "int32",
    8: "bool",
    9: "string",
    11: "message",
    12: "bytes",
    13: "uint32",
    14: "enum",
}


def describe(field):
    presence = "?" if field.has_presence and field.message_type is None else ""
    return f"{field.number} {field.name} {TYPE_NAMES[field.type]}" + (
        "*" if field.is_repeated else presence
    )


def messages():
    return {
        message.full_name: message
        for module in MODULES
        for message in module.DESCRIPTOR.message_types_by_name.values()
    }


def enums():
    top = [e for module in MODULES for e in module.DESCRIPTOR.enum_types_by_name.values()]
    nested = [e for message in messages().values() for e in message.enum_types]
    return {enum.full_name: enum for enum in top + nested}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_have_their_published_numbers_types_and_presence(name):
    assert ", ".join(describe(field) for field in messages()[name].fields) == FIELDS[name]


def test_enum_values_have_their_published_numbers():
    found = {
        name: " ".join(value.name for value in enum.values)
        for name, enum in enums().items()
        if [value.number for value in enum.values] == list(range(len(enum.values)))
    }
    assert found == ENUMS


def test_every_field_below_100_is_shared_and_ours_are_named_here():
    ours = {
        f"{name}.{field.name}"
        for name, message in messages().items()
        for field in message.fields
        if field.number >= 100
    }
    assert ours == {
        "danube.MessageResponse.topic_offset",
        "danube.StreamMessage.producer_sequence",
        "danube.StreamMessage.previous_sequence",
        "danube.StreamMessage.producer_session",
        "danube.ConsumerRequest.start_position",
        "danube_admin.NewTopicRequest.durability",
        "danube_admin.PartitionedTopicRequest.durability",
        "danube_admin.DescribeTopicResponse.durability",
        "danube_admin.DescribeTopicResponse.partitions",
        "danube_admin.RebalanceResponse.note",
        "danube_admin.DescribeTopicResponse.standings",
        "danube_admin.GetSubscriptionFailurePolicyResponse.is_default",
        "danube_admin.GetSubscriptionFailurePolicyResponse.subscription_exists",
        "danube_admin.SubscriptionListResponse.standings",
        "danube_schema.DeleteSchemaVersionRequest.force",
    }


BOTH_IN_ONE_PROCESS = """
import sys
if sys.argv[1] == "ours":
    import pydanube.wire.danube.services
import danube
from danube.proto import DanubeApi_pb2 as theirs, SchemaRegistry_pb2 as theirs_schema
from pydanube.wire.danube.generated import DanubeApi_pb2 as ours
from pydanube.wire.danube.generated import EdgeReplicator_pb2, SchemaRegistry_pb2

def same_fields(a, b):
    shared = {(f.name, f.number, f.type) for f in b.fields if f.number < 100}
    return {(f.name, f.number, f.type) for f in a.fields} == shared

for stock, own in ((theirs, ours), (theirs_schema, SchemaRegistry_pb2)):
    for name, message in stock.DESCRIPTOR.message_types_by_name.items():
        assert same_fields(message, own.DESCRIPTOR.message_types_by_name[name]), name

sent = theirs.StreamMessage(
    request_id=7,
    msg_id=theirs.MsgID(producer_id=5, topic_name="/default/t"),
    payload=b"x",
    attributes={"a": "b"},
    routing_key="",
)
read = ours.StreamMessage.FromString(sent.SerializeToString())
assert read.attributes["a"] == "b" and read.HasField("routing_key")
assert theirs.StreamMessage.FromString(read.SerializeToString()) == sent
assert theirs.MessageResponse.FromString(
    ours.MessageResponse(request_id=7, topic_offset=9).SerializeToString()
).request_id == 7
assert EdgeReplicator_pb2.ReplicateBatch(messages=[read]).messages[0].payload == b"x"
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_the_stock_client_lives_in_the_same_process(first):
    subprocess.run([sys.executable, "-c", BOTH_IN_ONE_PROCESS, first], check=True, timeout=60)


@pytest.mark.slow
def test_generated_files_match_the_protos():
    tool = Path(__file__).parents[4] / "tools/generate_stubs.py"
    subprocess.run([sys.executable, tool, "--check"], check=True, timeout=60)
