"""`danube` with a bug planted in it, for runs that must find it.

    python -m tests.chaos.planted acks_count_by_name_and_offset_alone broker ...

The bugs are those that worlds of simulated clusters must find, by the names of their functions.
"""

import sys
from collections.abc import Callable

import pytest

from pydanube.cli.main import danube
from tests.support import planted_cluster_bugs


def main(bug: str, arguments: list[str]) -> None:
    """Run `danube` with these arguments and that bug."""
    plant: Callable[[pytest.MonkeyPatch], None] = getattr(planted_cluster_bugs, bug)
    plant(pytest.MonkeyPatch())
    danube(arguments)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
