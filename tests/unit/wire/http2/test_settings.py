import pytest

from pydanube.wire.http2.errors import ConnectionFault, ErrorCode
from pydanube.wire.http2.settings import (
    ENABLE_PUSH,
    HEADER_TABLE_SIZE,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    PeerSettings,
    settings_frame,
)


def applied(entries):
    settings = PeerSettings()
    payload = settings_frame(entries)[9:]
    settings.apply(b"xx" + payload, 2, 2 + len(payload))
    return settings


def test_a_peer_starts_with_the_values_of_the_rfc():
    settings = PeerSettings()
    assert settings.header_table_size == 4096
    assert settings.initial_window == 65_535
    assert settings.payload_bytes_max == 16_384
    assert settings.streams_max is None
    assert settings.header_list_bytes_max is None


def test_every_known_setting_is_taken_and_unknown_ones_are_ignored():
    settings = applied(
        {
            HEADER_TABLE_SIZE: 0,
            ENABLE_PUSH: 0,
            MAX_CONCURRENT_STREAMS: 7,
            INITIAL_WINDOW_SIZE: 2**31 - 1,
            MAX_FRAME_SIZE: 2**24 - 1,
            MAX_HEADER_LIST_SIZE: 9,
            0xABCD: 1,
        }
    )
    assert settings.header_table_size == 0
    assert settings.enable_push == 0
    assert settings.streams_max == 7
    assert settings.initial_window == 2**31 - 1
    assert settings.payload_bytes_max == 2**24 - 1
    assert settings.header_list_bytes_max == 9


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ({ENABLE_PUSH: 2}, ErrorCode.PROTOCOL_ERROR),
        ({INITIAL_WINDOW_SIZE: 2**31}, ErrorCode.FLOW_CONTROL_ERROR),
        ({MAX_FRAME_SIZE: 16_383}, ErrorCode.PROTOCOL_ERROR),
        ({MAX_FRAME_SIZE: 2**24}, ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_a_value_out_of_range_is_a_fault(entries, code):
    with pytest.raises(ConnectionFault) as fault:
        applied(entries)
    assert fault.value.code is code


def test_half_an_entry_is_a_fault():
    with pytest.raises(ConnectionFault) as fault:
        PeerSettings().apply(bytes(7), 0, 7)
    assert fault.value.code is ErrorCode.FRAME_SIZE_ERROR
