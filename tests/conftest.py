"""Options of the whole suite."""

import pytest
from hypothesis import settings

# A law does not fail because the machine was busy.
settings.register_profile("suite", deadline=None, print_blob=True)
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the transcripts of tests/scenarios anew; then read the difference",
    )
