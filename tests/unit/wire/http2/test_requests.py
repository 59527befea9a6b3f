import pytest

from pydanube.wire.http2.requests import (
    MalformedHeaders,
    check_trailers,
    read_request,
    read_timeout,
    request_block,
    write_timeout,
)
from tests.support.http2_peers import decoded, headers, request_fields, split_frames


def test_a_request_says_where_it_goes_and_what_comes_with_it():
    head = read_request(
        request_fields(
            "/danube.Service/Method",
            authorization=b"Bearer x",
            trace_bin=b"AAAA",
            grpc_timeout=b"250m",
            grpc_encoding=b"gzip",
            user_agent=b"test",
        )
    )
    assert head.path == "/danube.Service/Method"
    assert head.is_grpc
    assert head.metadata == {"authorization": "Bearer x", "user-agent": "test"}
    assert head.timeout_ms == 250.0
    assert head.encoding == b"gzip"


def test_a_header_given_twice_is_joined():
    head = read_request([*request_fields(), (b"tag", b"a"), (b"tag", b"b")])
    assert head.metadata["tag"] == "a,b"


@pytest.mark.parametrize(
    ("content_type", "is_grpc"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"application/grpc;charset=x", True),
        (b"application/GRPC", True),
        (b"application/grpc-web", False),
        (b"application/json", False),
        (b"", False),
    ],
)
def test_only_grpc_is_grpc(content_type, is_grpc):
    fields = [field for field in request_fields() if field[0] != b"content-type"]
    assert read_request([*fields, (b"content-type", content_type)]).is_grpc is is_grpc


def test_a_get_is_not_grpc():
    fields = [(b":method", b"GET"), *request_fields()[1:]]
    assert not read_request(fields).is_grpc


BASE = request_fields()


@pytest.mark.parametrize(
    "fields",
    [
        BASE[1:],
        [BASE[0], *BASE[2:]],
        [*BASE[:2], *BASE[3:]],
        [(b":path", b""), *BASE[:2]],
        [BASE[0], *BASE],
        [*BASE, (b":path", b"/late")],
        [(b":status", b"200"), *BASE],
        [(b":unknown", b""), *BASE],
        [*BASE, (b"Upper", b"x")],
        [*BASE, (b"", b"x")],
        [*BASE, (b"na me", b"x")],
        [*BASE, (b"connection", b"close")],
        [*BASE, (b"transfer-encoding", b"chunked")],
        [*BASE, (b"te", b"gzip")],
        [*BASE, (b"x", b"a\r\nb")],
        [*BASE, (b"x", b"a\0b")],
        [*BASE, (b"x", b" leading")],
        [*BASE, (b"x", b"trailing\t")],
        [*BASE, (b"content-length", b"-1")],
        [*BASE, (b"content-length", b"x")],
        [*BASE, (b"content-length", b"1"), (b"content-length", b"2")],
    ],
)
def test_headers_that_break_the_rules_are_malformed(fields):
    with pytest.raises(MalformedHeaders):
        read_request(fields)


def test_trailers_carry_no_pseudo_headers():
    check_trailers([(b"x", b"y")])
    with pytest.raises(MalformedHeaders):
        check_trailers([(b":path", b"/")])


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        (b"1H", 3_600_000),
        (b"2M", 120_000),
        (b"3S", 3_000),
        (b"4m", 4),
        (b"5000u", 5),
        (b"6000000n", 6),
        (b"99999999S", 99_999_999_000),
        (b"0S", 0),
    ],
)
def test_a_timeout_is_read_in_each_unit(written, milliseconds):
    assert read_timeout(written) == pytest.approx(milliseconds)


@pytest.mark.parametrize("written", [b"", b"1", b"S", b"-1S", b"1.5S", b"1x", b"100000000S"])
def test_a_timeout_that_is_none_is_told_apart(written):
    assert read_timeout(written) is None
    head = read_request(request_fields(grpc_timeout=written))
    assert head.timeout_ms is None
    assert not head.timeout_is_readable


@pytest.mark.parametrize("seconds", [1e-9, 0.05, 1, 99.999, 100, 12_345.678, 3e6, 1e9])
def test_a_timeout_is_written_in_full_and_hardly_longer(seconds):
    read = read_timeout(write_timeout(seconds))
    assert seconds * 1000 <= read * (1 + 1e-12)
    assert read <= seconds * 1000 * 1.02 + 0.001


def test_a_timeout_beyond_all_units_is_the_longest_there_is():
    assert write_timeout(1e300) == b"99999999H"


def test_a_block_of_a_call_reads_as_it_was_meant():
    block = request_block(
        scheme=b"https",
        authority=b"host:1",
        path="/a/B",
        metadata={"Authorization": "Bearer ü"},
        timeout=b"1S",
    )
    assert block == request_block(
        scheme=b"https",
        authority=b"host:1",
        path="/a/B",
        metadata={"authorization": "Bearer ü"},
        timeout=b"1S",
    )
    from hpack import Decoder

    head = read_request([(f[0], f[1]) for f in Decoder().decode(block, raw=True)])
    assert (head.path, head.is_grpc, head.timeout_ms) == ("/a/B", True, 1000.0)
    assert head.metadata["authorization"] == "Bearer ü"


@pytest.mark.parametrize("metadata", [{"na me": "x"}, {"x": "a\nb"}, {"": "x"}, {":path": "/"}])
def test_metadata_that_would_be_malformed_is_refused_before_it_is_sent(metadata):
    with pytest.raises(ValueError, match="cannot be sent"):
        request_block(scheme=b"http", authority=b"h", path="/", metadata=metadata, timeout=None)


def test_the_helpers_of_these_tests_speak_the_same_language():
    assert decoded(split_frames(headers(1)))[0] == dict(request_fields())
