"""h2spec, the conformance suite for HTTP/2 servers, against our engine. It is built with Go."""

import asyncio
import os
import re
import shutil
import subprocess

import pytest

from pydanube.wire.calls import HandlerTable
from pydanube.wire.http2.engine import Http2Engine
from pydanube.wire.http2.limits import KIB, Http2Limits

H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
CASES_MIN = 140


@pytest.fixture(scope="module")
def h2spec(tmp_path_factory):
    found = shutil.which("h2spec")
    if found is not None:
        return found
    if shutil.which("go") is None:
        pytest.skip("h2spec cannot be built: Go is not installed")
    folder = tmp_path_factory.mktemp("h2spec")
    environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-mod=mod"}
    built = subprocess.run(
        ["go", "install", H2SPEC],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if built.returncode:
        pytest.skip(f"h2spec cannot be built: {built.stderr.strip().splitlines()[-1]}")
    return str(folder / "h2spec")


@pytest.mark.slow
async def test_every_case_of_h2spec_passes(h2spec):
    # It sends one frame as long as we allow, and does not look at the window of its stream.
    limits = Http2Limits(payload_bytes_max=64 * KIB)
    server = await Http2Engine(limits=limits).serve(HandlerTable(), "127.0.0.1", 0)
    process = await asyncio.create_subprocess_exec(
        h2spec,
        *("--port", str(server.port), "--timeout", "5"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 120)
    await server.stop(0)
    text = output.decode()
    counted = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", text)
    assert counted is not None, text
    cases, passed, skipped, failed = map(int, counted.groups())
    assert (failed, skipped) == (0, 0), text[text.find("Failures") :]
    assert passed == cases >= CASES_MIN
