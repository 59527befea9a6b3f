"""Bugs in journal mirrors, planted one at a time, that the mirror world must find."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from pydanube.cluster.mirrors import take_over
from pydanube.model.ids import BrokerId
from pydanube.storage.mirrors import replication
from pydanube.storage.mirrors.replication import Answer
from pydanube.storage.topic_log import TopicLog

Plant = Callable[[pytest.MonkeyPatch], None]


def one_copy_is_enough(patch: pytest.MonkeyPatch) -> None:
    """The owner acknowledges what its own journal alone has."""
    patch.setattr(replication, "majority", lambda members: 1)


def the_first_answer_is_taken(patch: pytest.MonkeyPatch) -> None:
    """A new owner asks one member of the set and believes it."""

    def choose(
        set_epoch: int, members: Sequence[BrokerId], answers: Mapping[BrokerId, Answer]
    ) -> Answer | None:
        return next(iter(answers.values()), None)

    patch.setattr(take_over, "choose_answer", choose)


def batches_wait_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """Batches are answered as soon as the owner's own journal has them."""
    patch.setattr(TopicLog, "_is_mirrored", lambda log, entry: True)


PLANTS: tuple[Plant, ...] = (
    one_copy_is_enough,
    the_first_answer_is_taken,
    batches_wait_for_nobody,
)
