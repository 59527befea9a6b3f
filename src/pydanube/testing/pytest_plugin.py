"""The fixture `danube_broker`, known to pytest wherever PyDanube is installed.

pytest imports this module in every run, so the broker itself is imported when a test asks for it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pydanube.testing.broker import Broker


@pytest.fixture
def danube_broker() -> "Iterator[Broker]":
    """A fresh, empty broker for this test alone; connect to its `url`."""
    from pydanube.testing.broker import Broker

    with Broker() as broker:
        yield broker
