"""What a unary call costs the server, by engine and number of calls in flight.

python -m benchmarks.http2_engine [--seconds 3] [--payload 1024]

The server runs in a process of its own, on uvloop, with a handler that answers at once; its CPU
time is read from the system before and after. One client process calls it through one connection:
our own channel, and h2load where it is installed (it measures the server, not the client).
"""

import argparse
import asyncio
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import uvloop

from pydanube.wire.calls import Engine, HandlerTable
from pydanube.wire.grpcio.engine import GrpcioEngine
from pydanube.wire.http2.channel import Http2Channel
from pydanube.wire.http2.engine import Http2Engine
from tests.support.grpc_messages import frame_messages

PATH = "/bench/Direct"
REPLY = b"\x08\x01"
ENGINES: dict[str, type[Engine]] = {"http2": Http2Engine, "grpcio": GrpcioEngine}
IN_FLIGHT = (1, 32, 256)


async def serve(engine: str, certificate: str | None) -> None:
    table = HandlerTable()
    table.add_direct(PATH, lambda request, call, reply: reply.send(REPLY))
    carrier = ENGINES[engine]() if certificate is None else Http2Engine(tls=context(certificate))
    server = await carrier.serve(table, "127.0.0.1", 0)
    print(server.port, flush=True)
    await asyncio.Event().wait()


def context(certificate: str) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    return tls


def make_certificate(folder: str) -> str:
    """Return a file with a key and a certificate nobody should trust."""
    path = f"{folder}/both.pem"
    name = ["-subj", "/CN=localhost", "-days", "1"]
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            *name,
            "-keyout",
            f"{folder}/key.pem",
            "-out",
            f"{folder}/certificate.pem",
        ],
        check=True,
        capture_output=True,
    )
    parts = [Path(folder, each).read_text() for each in ("key.pem", "certificate.pem")]
    Path(path).write_text("".join(parts))
    return path


async def call(port: int, in_flight: int, payload: bytes, seconds: float) -> int:
    """Keep so many calls in flight for so long; return how many were answered."""
    channel = Http2Channel(f"127.0.0.1:{port}")
    stop = time.perf_counter() + seconds
    answered = 0

    async def caller() -> None:
        nonlocal answered
        while time.perf_counter() < stop:
            assert await channel.unary(PATH, payload) == REPLY
            answered += 1

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    await channel.close()
    return answered


def call_by_h2load(
    port: int, in_flight: int, payload: bytes, seconds: float, scheme: str = "http"
) -> int:
    """Do the same with h2load, in ever longer runs until one fills half of the time."""
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder, "body")
        body.write_bytes(frame_messages([payload]))
        headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        url = f"{scheme}://127.0.0.1:{port}{PATH}"
        started, count, answered = time.perf_counter(), 1_000, 0
        while True:
            shape = ["-c", "1", "-m", str(in_flight), "-n", str(count), "-d", str(body)]
            result = subprocess.run(
                ["h2load", *shape, *headers, url], check=True, capture_output=True, text=True
            )
            assert f"{count} succeeded" in result.stdout, result.stdout
            answered += count
            elapsed = time.perf_counter() - started
            if elapsed >= seconds / 2:
                return answered
            started, count = time.perf_counter(), int(count * min(10.0, seconds / elapsed) + 1)


def measure(engine: str, payload: bytes, seconds: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.http2_engine", "--serve", engine],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        clients = {"our channel": lambda n: uvloop.run(call(port, n, payload, seconds))}
        if shutil.which("h2load"):
            clients["h2load"] = lambda n: call_by_h2load(port, n, payload, seconds)
        for name, run in clients.items():
            for in_flight in IN_FLIGHT:
                show(engine, name, in_flight, *timed(process.pid, run, in_flight))
    finally:
        process.terminate()
        process.wait()


def measure_tls(payload: bytes, seconds: float) -> None:
    """The same over TLS, by h2load: grpcio's engine has no TLS to compare with."""
    if not shutil.which("h2load") or not shutil.which("openssl"):
        print("http2 over TLS: not run, h2load or openssl is missing")
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--serve", "http2", "--certificate"]
        process = subprocess.Popen(
            [*command, make_certificate(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            for in_flight in IN_FLIGHT:
                figures = timed(
                    process.pid,
                    lambda n: call_by_h2load(port, n, payload, seconds, "https"),
                    in_flight,
                )
                show("TLS", "h2load", in_flight, *figures)
        finally:
            process.terminate()
            process.wait()


def timed(pid: int, run, in_flight: int) -> tuple[float, float]:
    """Return calls per second and microseconds of the server's CPU per call."""
    run(in_flight)  # So that both ends are warm.
    before, started = psutil.Process(pid).cpu_times(), time.perf_counter()
    calls = run(in_flight)
    after, elapsed = psutil.Process(pid).cpu_times(), time.perf_counter() - started
    used = after.user + after.system - before.user - before.system
    return calls / elapsed, used / calls * 1e6


def show(engine: str, client: str, in_flight: int, rate: float, cpu_us: float) -> None:
    print(
        f"{engine:>7}  {client:>11}  in flight {in_flight:>3}:"
        f"  {rate:>9,.0f} calls/s  {cpu_us:>6.1f} us of server CPU per call",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--payload", type=int, default=1024)
    parser.add_argument("--serve", choices=ENGINES)
    parser.add_argument("--certificate", help="serve over TLS with this key and certificate")
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve, options.certificate))
        return
    for engine in ENGINES:
        measure(engine, bytes(options.payload), options.seconds)
    measure_tls(bytes(options.payload), options.seconds)


if __name__ == "__main__":
    main()
