from pydanube.metadata import keys
from pydanube.metadata.commands import check_key
from pydanube.model.ids import BrokerId
from pydanube.model.names import NAME_CHARACTERS_MAX

TOPIC = "/default/orders"
BROKER = BrokerId(7)


def test_the_key_space_is_the_documented_one():
    assert keys.cluster("main") == "/cluster/main"
    assert keys.registration(BROKER) == "/cluster/register/7"
    assert keys.broker_state(BROKER) == "/cluster/brokers/7/state"
    assert keys.assignment(BROKER, TOPIC) == "/cluster/brokers/7/default/orders"
    assert keys.unassigned_topic(TOPIC) == "/cluster/unassigned/default/orders"
    assert keys.load_report(BROKER) == "/cluster/load/7"
    move = keys.rebalancing_move(1_700_000_000_123, 42)
    assert move == "/cluster/rebalancing_history/1700000000-0000000042"
    assert keys.namespace_policy("default") == "/namespaces/default/policy"
    assert keys.namespace_topic(TOPIC) == "/namespaces/default/topics/default/orders"
    assert keys.topic_record(TOPIC) == "/topics/default/orders"
    assert keys.topic_delivery(TOPIC) == "/topics/default/orders/delivery"
    assert keys.topic_policy(TOPIC) == "/topics/default/orders/policy"
    assert keys.producer(TOPIC, "p") == "/topics/default/orders/producers/p"
    subscription = "/topics/default/orders/subscriptions/audit"
    assert keys.subscription(TOPIC, "audit") == subscription
    assert keys.subscription_cursor(TOPIC, "audit") == f"{subscription}/cursor"
    assert keys.subscription_failure_policy(TOPIC, "audit") == f"{subscription}/failure_policy"
    assert keys.subscription_dispatch_config(TOPIC, "audit") == f"{subscription}/dispatch_config"
    assert keys.consumer(TOPIC, "audit", "c") == f"{subscription}/consumers/c"


def test_names_that_look_like_paths_stay_in_their_place():
    key = keys.subscription(TOPIC, "a/b %2F ü")
    assert key == "/topics/default/orders/subscriptions/a%2Fb%20%252F%20%C3%BC"
    assert keys.name_directly_below(keys.subscriptions(TOPIC), key) == "a/b %2F ü"


def test_a_brokers_state_is_not_mistaken_for_a_topic():
    prefix = keys.assignments(BROKER)
    assert keys.assigned_topic(BROKER, keys.assignment(BROKER, "/state/state")) == "/state/state"
    assert keys.assigned_topic(BROKER, keys.broker_state(BROKER)) is None
    assert keys.assignment(BROKER, TOPIC).startswith(prefix)
    assert not keys.assignment(BrokerId(77), TOPIC).startswith(prefix)


def test_a_namespaces_topics_are_read_back():
    key = keys.namespace_topic(TOPIC)
    assert key.startswith(keys.namespace_topics("default"))
    assert keys.topic_of_namespace_topic(key) == TOPIC


def test_a_consumers_topic_is_read_back_whatever_names_it_has():
    for name in ("c", "consumers", "a/b/consumers/c", "%2F", ""):
        assert keys.topic_of_consumer(keys.consumer(TOPIC, name, name)) == TOPIC
        assert keys.topic_of_consumer(keys.subscription(TOPIC, name)) is None
        assert keys.topic_of_consumer(keys.subscription_cursor(TOPIC, name)) is None
        assert keys.topic_of_consumer(keys.producer(TOPIC, name)) is None
    assert keys.topic_of_consumer(keys.topic_record(TOPIC)) is None


def test_the_longest_names_fit():
    name = "\U0001f600" * NAME_CHARACTERS_MAX
    topic = "/n/" + "ü" * (NAME_CHARACTERS_MAX - 3)
    check_key(keys.consumer(topic, name, name))


def test_schemas_lie_below_their_subject_whatever_it_is_called() -> None:
    assert keys.schema_id(7) == "/schemas/_index/by_id/00000000000000000007"
    assert keys.subject("orders") == "/schemas/orders/metadata"
    assert keys.subject("/default/a b") == "/schemas/%2Fdefault%2Fa%20b/metadata"
    assert keys.subject("_index") == "/schemas/%5Findex/metadata"
    assert keys.subject_version("orders", 2) == "/schemas/orders/versions/2"
    bound = keys.subject_topic("orders", "/default/orders")
    assert keys.name_directly_below(keys.subject_topics("orders"), bound) == "/default/orders"
