import ast
from pathlib import Path

import pytest

import pydanube.wire.http2

ROOM = Path(pydanube.wire.http2.__file__).parent
DRIVERS = {
    "addresses",
    "channel",
    "client_calls",
    "client_connection",
    "engine",
    "long_messages",
    "parked_calls",
    "server",
    "server_calls",
    "server_connection",
    "tls",
    "transports",
    "turns",
}
PURE = sorted({path.stem for path in ROOM.glob("*.py")} - DRIVERS - {"__init__"})
BENEATH = {"pydanube.wire.calls", "pydanube.wire.memory"}
OUTSIDE = {"asyncio", "os", "pathlib", "random", "socket", "ssl", "threading", "time"}


def imported(module):
    for node in ast.walk(ast.parse((ROOM / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("module", PURE)
def test_the_codec_reaches_nothing_outside_its_room(module):
    for name in imported(module):
        assert name.split(".")[0] not in OUTSIDE
        if name.startswith("pydanube."):
            own_room = name.removeprefix("pydanube.wire.http2.")
            assert name in BENEATH or own_room in PURE
