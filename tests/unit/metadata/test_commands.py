import pytest

from pydanube.errors import Corruption, InvalidRequest
from pydanube.metadata.commands import (
    KEY_BYTES_MAX,
    LEASE_TTL_MS_MAX,
    OPERATIONS_MAX,
    TRANSACTION_BYTES_MAX,
    VALUE_BYTES_MAX,
    Command,
    ExpireLeases,
    GrantLease,
    NextId,
    RenewLease,
    RevokeLease,
    Transact,
    check_command,
    check_key,
    check_prefix,
    decode_command,
    encode_command,
)
from pydanube.metadata.store import Delete, Expect, Put

# Bytes on disk: these may be added to, never changed.
GOLDEN: list[tuple[Command, str]] = [
    (
        Transact((Expect("/a", 3),), (Put("/a", b"\xff", 7), Put("/b", b""), Delete("/c"))),
        "83a474797065a87472616e73616374aa636f6e646974696f6e739183a474797065a6457870656374"
        "a36b6579a22f61a87265766973696f6e03aa6f7065726174696f6e739384a474797065a3507574a3"
        "6b6579a22f61a576616c7565c401ffa56c656173650784a474797065a3507574a36b6579a22f62a5"
        "76616c7565c400a56c65617365c082a474797065a644656c657465a36b6579a22f63",
    ),
    (NextId("/n"), "82a474797065a76e6578745f6964ab636f756e7465725f6b6579a22f6e"),
    (
        GrantLease(32_000, 1_700_000_000_000),
        "83a474797065ab6772616e745f6c65617365a674746c5f6d73cd7d00a66e6f775f6d73cf0000018bcfe56800",
    ),
    (
        RenewLease(7, 1_700_000_000_000),
        "83a474797065ab72656e65775f6c65617365a56c6561736507a66e6f775f6d73cf0000018bcfe56800",
    ),
    (RevokeLease(7), "82a474797065ac7265766f6b655f6c65617365a56c6561736507"),
    (
        ExpireLeases(1_700_000_000_000),
        "82a474797065ad6578706972655f6c6561736573a66e6f775f6d73cf0000018bcfe56800",
    ),
]


@pytest.mark.parametrize(("command", "encoded"), GOLDEN, ids=lambda value: type(value).__name__)
def test_commands_keep_their_bytes(command: Command, encoded: str):
    assert encode_command(command).hex() == encoded
    assert decode_command(bytes.fromhex(encoded)) == command


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa4type\xa4next", b"\x90"])
def test_what_is_no_command_is_named_corruption(data: bytes):
    with pytest.raises(Corruption):
        decode_command(data)


@pytest.mark.parametrize("key", ["/a", "/topics/default/orders", "/ü/%2F", "/" + "a" * 8_191])
def test_paths_are_keys(key: str):
    assert check_key(key) == key


@pytest.mark.parametrize("prefix", ["/", "/a/", "/topics/default/orders/"])
def test_paths_with_a_slash_behind_are_prefixes(prefix: str):
    assert check_prefix(prefix) == prefix


@pytest.mark.parametrize(
    "key", ["", "/", "a", "a/b", "/a/", "/a//b", "//a", "/\ud800", "/" + "ü" * (KEY_BYTES_MAX // 2)]
)
def test_malformed_keys_are_refused(key: str):
    with pytest.raises(InvalidRequest):
        check_key(key)


@pytest.mark.parametrize("prefix", ["", "/a", "a/", "//", "/a//", "/\ud800/"])
def test_malformed_prefixes_are_refused(prefix: str):
    with pytest.raises(InvalidRequest):
        check_prefix(prefix)


@pytest.mark.parametrize(
    "command",
    [
        Transact((), (Put("/a", b"x" * VALUE_BYTES_MAX),)),
        Transact((), tuple(Put(f"/{n}", b"") for n in range(OPERATIONS_MAX))),
        GrantLease(LEASE_TTL_MS_MAX, 0),
        Transact((), ()),
    ],
    ids=["value", "operations", "lease", "nothing"],
)
def test_what_just_fits_is_accepted(command: Command):
    check_command(command)


@pytest.mark.parametrize(
    "command",
    [
        Transact((), (Put("/a", b"x" * (VALUE_BYTES_MAX + 1)),)),
        Transact((), tuple(Put(f"/{n}", b"") for n in range(OPERATIONS_MAX + 1))),
        Transact(tuple(Expect(f"/{n}", 0) for n in range(OPERATIONS_MAX + 1)), ()),
        Transact(
            (),
            tuple(
                Put(f"/{n}", b"x" * VALUE_BYTES_MAX)
                for n in range(TRANSACTION_BYTES_MAX // VALUE_BYTES_MAX)
            ),
        ),
        Transact((), (Put("/a", b""), Delete("/a"))),
        Transact((Expect("a", 0),), ()),
        Transact((), (Delete("a"),)),
        NextId("n"),
        GrantLease(0, 0),
        GrantLease(LEASE_TTL_MS_MAX + 1, 0),
    ],
    ids=lambda command: type(command).__name__,
)
def test_what_breaks_a_limit_is_refused(command: Command):
    with pytest.raises(InvalidRequest):
        check_command(command)
