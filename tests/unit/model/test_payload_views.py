"""Payloads read where they lie."""

import pytest

from pydanube.model.batch import gather_columns, payload_views_of, payloads_of
from pydanube.model.message import Message


@pytest.mark.parametrize("payloads", [[b"one", b"", b"three"], [b"aa", b"bb", b"cc"], [b"", b""]])
def test_views_are_the_payloads_of_the_rows_and_of_a_part_of_them(payloads: list[bytes]) -> None:
    rows = gather_columns(
        [Message(payload=each, publish_time_ms=1, producer_name="till") for each in payloads]
    )
    for part in (rows, rows.slice(1), rows.slice(0, 1), rows.slice(1, 1), rows.slice(1, 0)):
        views = list(payload_views_of(part))
        assert [bytes(view) for view in views] == payloads_of(part)
        assert all(view.readonly for view in views)
