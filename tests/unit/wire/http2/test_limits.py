import msgspec
import pytest

from pydanube.wire.http2.limits import Allowance, Http2Limits


def test_an_allowance_ends_after_its_burst():
    allowance = Allowance(3, 1.0)
    assert [allowance.take(1_000) for _ in range(5)] == [True, True, True, False, False]


def test_an_allowance_comes_back_at_its_rate_and_never_beyond_its_burst():
    allowance = Allowance(3, 2.0)
    for _ in range(3):
        allowance.take(1_000)
    assert not allowance.take(1_400)
    assert allowance.take(1_500)
    assert not allowance.take(1_500)
    assert [allowance.take(1_000_000) for _ in range(4)] == [True, True, True, False]


def test_asking_in_vain_does_not_cost_what_has_come_back():
    allowance = Allowance(1, 1.0)
    assert allowance.take(0)
    assert not any(allowance.take(now_ms) for now_ms in range(1, 1_000))
    assert allowance.take(1_001)


def test_every_limit_is_on_by_default():
    limits = Http2Limits()
    assert all(getattr(limits, name) > 0 for name in limits.__struct_fields__)


@pytest.mark.parametrize("wrong", [{"streams_max": 0}, {"payload_bytes_max": 100}, {"typo": 1}])
def test_a_limit_out_of_range_is_refused(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Http2Limits)
