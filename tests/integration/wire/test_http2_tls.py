"""TLS: stock clients and ours, client certificates, and certificates renewed under way."""

import asyncio
import shutil
import ssl
from contextlib import asynccontextmanager, suppress

import grpc
import grpc.aio
import pytest

from pydanube.errors import InvalidRequest
from pydanube.wire.calls import CallRefused, HandlerTable, StatusCode
from pydanube.wire.http2.channel import Http2Channel
from pydanube.wire.http2.engine import Http2Engine
from pydanube.wire.http2.limits import Http2Limits
from tests.contract.engine_contract import within_patience
from tests.support.certificates import Authority, Installed

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("other"), "other")


@asynccontextmanager
async def serving(tls, **limits):
    table = HandlerTable()
    table.add_direct("/test/direct", lambda message, call, reply: reply.send(message))
    table.add_direct(
        "/test/names",
        lambda message, call, reply: reply.send(" ".join(call.certificate_names).encode()),
    )
    engine = Http2Engine(tls=tls, limits=Http2Limits(**limits))
    server = await engine.serve(table, "127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop(0)


def trusting(authority, identity=None):
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if identity is not None:
        context.load_cert_chain(*identity)
    return context


async def refusal_of(channel):
    with pytest.raises(CallRefused) as refused:
        await within_patience(channel.unary("/test/direct", b""))
    await channel.close()
    return refused.value.code


async def served_name(port, authority):
    """Return the name in the certificate a new connection is shown."""
    context = trusting(authority)
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("localhost", port, ssl=context)
    name = writer.get_extra_info("peercert")["subject"][0][0][1]
    writer.close()
    return name


async def test_stock_clients_and_ours_are_served_over_tls(tmp_path, authority):
    installed = Installed(tmp_path)
    installed.put(*authority.sign("server"))
    async with serving(installed.files()) as server:
        roots = authority.certificate.read_bytes()
        stock = grpc.aio.secure_channel(
            f"localhost:{server.port}", grpc.ssl_channel_credentials(roots)
        )
        async with stock:
            method = stock.unary_unary("/test/direct")
            assert await within_patience(method(bytes(1_000_000))) == bytes(1_000_000)
        ours = Http2Channel(f"https://localhost:{server.port}", tls=trusting(authority))
        assert await ours.unary("/test/names", b"") == b""
        assert await ours.unary("/test/direct", bytes(5_000_000)) == bytes(5_000_000)
        await ours.close()


async def test_a_plain_context_will_do(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("plain"))
    async with serving(context) as server:
        channel = Http2Channel(f"https://localhost:{server.port}", tls=trusting(authority))
        assert await channel.unary("/test/direct", b"hello") == b"hello"
        await channel.close()


async def test_a_server_that_is_not_trusted_is_not_called(tmp_path, authority, other_authority):
    installed = Installed(tmp_path)
    installed.put(*authority.sign("untrusted"))
    async with serving(installed.files()) as server:
        stranger = Http2Channel(f"https://localhost:{server.port}", tls=trusting(other_authority))
        assert await refusal_of(stranger) is StatusCode.UNAVAILABLE
        plain = Http2Channel(f"http://localhost:{server.port}")
        assert await refusal_of(plain) is StatusCode.UNAVAILABLE


async def test_only_clients_with_a_certificate_of_ours_are_served(
    tmp_path, authority, other_authority
):
    installed = Installed(tmp_path, clients=authority)
    installed.put(*authority.sign("strict"))
    async with serving(installed.files()) as server:
        url = f"https://localhost:{server.port}"
        known = Http2Channel(url, tls=trusting(authority, authority.sign("client")))
        assert await within_patience(known.unary("/test/names", b"")) == b"client localhost"
        await known.close()
        nobody = Http2Channel(url, tls=trusting(authority))
        assert await refusal_of(nobody) is StatusCode.UNAVAILABLE
        stranger = Http2Channel(url, tls=trusting(authority, other_authority.sign("stranger")))
        assert await refusal_of(stranger) is StatusCode.UNAVAILABLE


async def test_renewed_files_are_shown_to_new_connections_and_old_ones_go_on(tmp_path, authority):
    installed = Installed(tmp_path)
    installed.put(*authority.sign("first"))
    tls = installed.files()
    async with serving(tls) as server:
        old = Http2Channel(f"https://localhost:{server.port}", tls=trusting(authority))
        assert await old.unary("/test/direct", b"1") == b"1"
        assert await served_name(server.port, authority) == "first"
        assert not await tls.refresh()
        installed.put(*authority.sign("second"))
        assert await served_name(server.port, authority) == "first"
        assert await tls.refresh()
        assert await served_name(server.port, authority) == "second"
        assert await old.unary("/test/direct", b"2") == b"2"
        await old.close()


async def test_renewed_client_authorities_replace_the_former(tmp_path, authority, other_authority):
    installed = Installed(tmp_path, clients=authority)
    installed.put(*authority.sign("renewing"))
    tls = installed.files()
    async with serving(tls) as server:
        url = f"https://localhost:{server.port}"
        ours, theirs = authority.sign("former"), other_authority.sign("newcomer")
        shutil.copy(other_authority.certificate, installed.clients)
        assert await tls.refresh()
        newcomer = Http2Channel(url, tls=trusting(authority, theirs))
        assert await within_patience(newcomer.unary("/test/direct", b"me")) == b"me"
        await newcomer.close()
        former = Http2Channel(url, tls=trusting(authority, ours))
        assert await refusal_of(former) is StatusCode.UNAVAILABLE


@pytest.mark.parametrize("damage", ["garbage", "missing", "wrong key"])
async def test_files_that_do_not_fit_together_change_nothing(tmp_path, authority, damage):
    installed = Installed(tmp_path)
    installed.put(*authority.sign("kept"))
    tls = installed.files()
    async with serving(tls) as server:
        if damage == "garbage":
            installed.certificate.write_text("garbage")
        elif damage == "missing":
            installed.key.unlink()
        else:
            shutil.copy(authority.sign("half")[0], installed.certificate)
        assert not await tls.refresh()
        assert await served_name(server.port, authority) == "kept"


async def test_files_that_cannot_be_read_keep_the_server_from_starting(tmp_path):
    with pytest.raises(OSError):
        async with serving(Installed(tmp_path).files()):
            pass


async def test_a_client_that_does_not_ask_for_http2_is_turned_away(tmp_path, authority):
    installed = Installed(tmp_path)
    installed.put(*authority.sign("alpn"))
    async with serving(installed.files()) as server:
        reader, writer = await asyncio.open_connection(
            "localhost", server.port, ssl=trusting(authority)
        )
        with suppress(ConnectionError):
            assert await within_patience(reader.read()) == b""
        writer.close()
        assert server.connection_count == 0


async def test_a_handshake_that_stops_half_way_is_cut_off(tmp_path, authority):
    installed = Installed(tmp_path)
    installed.put(*authority.sign("slow"))
    async with serving(installed.files(), handshake_seconds_max=0.3) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x16\x03\x01")
        with suppress(ConnectionError):
            assert await within_patience(reader.read()) == b""
        writer.close()


def test_a_context_needs_an_address_that_asks_for_it():
    with pytest.raises(InvalidRequest, match="https://"):
        Http2Channel("http://localhost:1", tls=ssl.create_default_context())
