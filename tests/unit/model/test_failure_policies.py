"""Changing a failure policy in part."""

import pytest

from pydanube.errors import InvalidRequest
from pydanube.model.failure_policies import FailurePolicyChange, changed_policy
from pydanube.model.policies import FailurePolicy
from pydanube.model.standing import dead_letter_topic_of

TOPIC = "/default/orders"


def test_what_is_not_given_stays() -> None:
    policy = FailurePolicy(max_redelivery_count=2, ack_timeout_ms=7, backoff_strategy="Fixed")
    assert changed_policy(policy, FailurePolicyChange(), TOPIC) == policy
    changed = changed_policy(policy, FailurePolicyChange(max_redelivery_count=0), TOPIC)
    assert (changed.max_redelivery_count, changed.ack_timeout_ms) == (0, 7)
    assert changed.backoff_strategy == "Fixed"


def test_dead_letters_go_to_the_topic_that_is_known_or_to_one_named_like_it() -> None:
    to_dead = FailurePolicyChange(poison_policy="DeadLetter")
    assert changed_policy(FailurePolicy(), to_dead, TOPIC).dead_letter_topic == f"{TOPIC}-dlq"
    known = FailurePolicy(dead_letter_topic="/default/lost")
    assert changed_policy(known, to_dead, TOPIC).dead_letter_topic == "/default/lost"
    part = changed_policy(FailurePolicy(), to_dead, f"{TOPIC}-part-3")
    assert part.dead_letter_topic == f"{TOPIC}-dlq", "partitions share one"
    assert dead_letter_topic_of(f"{TOPIC}-dlq") == f"{TOPIC}-dlq-dlq"


@pytest.mark.parametrize(
    "change",
    [
        FailurePolicyChange(ack_timeout_ms=0),
        FailurePolicyChange(max_redelivery_count=-1),
        FailurePolicyChange(dead_letter_topic="lost"),
        FailurePolicyChange(dead_letter_topic=TOPIC),
    ],
)
def test_what_cannot_work_is_refused(change: FailurePolicyChange) -> None:
    with pytest.raises(InvalidRequest):
        changed_policy(FailurePolicy(), change, TOPIC)
