"""The ids that clients keep across a broker's restart."""

from pydanube.model.ids import stable_consumer_id, stable_producer_id

TOPIC = "/default/orders"


def test_ids_are_between_1_and_2_to_the_53_and_differ_by_name() -> None:
    ids = [stable_producer_id(TOPIC, f"p{n}") for n in range(2000)]
    ids += [stable_consumer_id(TOPIC, "s", f"c{n}") for n in range(2000)]
    assert len(set(ids)) == 4000
    assert all(1 <= each < 2**53 for each in ids), "Java and JavaScript read them right"


def test_parts_of_names_do_not_run_together() -> None:
    assert stable_consumer_id(TOPIC, "a", "bc") != stable_consumer_id(TOPIC, "ab", "c")
    assert stable_producer_id(TOPIC, "x") != stable_consumer_id(TOPIC, "", "x")


def test_a_salt_gives_another_id_to_the_same_name() -> None:
    assert stable_producer_id(TOPIC, "p", 0) != stable_producer_id(TOPIC, "p", 1)
