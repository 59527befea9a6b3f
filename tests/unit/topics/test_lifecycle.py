import pytest

from pydanube.errors import Conflict
from pydanube.topics.lifecycle import Step, TopicState, next_state


def test_a_topic_drains_and_then_closes() -> None:
    state = next_state(TopicState.ACTIVE, Step.DRAIN)
    assert state is TopicState.DRAINING
    assert next_state(state, Step.CLOSE) is TopicState.CLOSED


@pytest.mark.parametrize("step", Step)
def test_what_is_closed_already_stays_closed(step: Step) -> None:
    assert next_state(TopicState.CLOSED, step) is TopicState.CLOSED


@pytest.mark.parametrize(
    ("state", "step"),
    [(TopicState.ACTIVE, Step.CLOSE), (TopicState.DRAINING, Step.DRAIN)],
)
def test_other_steps_are_refused(state: TopicState, step: Step) -> None:
    with pytest.raises(Conflict, match=state.name.lower()):
        next_state(state, step)
