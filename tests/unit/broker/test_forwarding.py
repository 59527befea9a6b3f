"""What a broker that may be behind its cluster does not know, it does not call missing."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pydanube.broker.forwarding import Forwarding
from pydanube.cluster.readiness import Readiness
from pydanube.errors import Unavailable
from pydanube.model.ids import BrokerId
from pydanube.runtime.clock import SystemClock
from pydanube.wire.calls import Call, CallRefused, HandlerTable, StatusCode
from pydanube.wire.danube import services

CALL = Call(path=services.DELETE_TOPIC.path, peer="p", metadata={})


async def no_majority() -> None:
    raise Unavailable("no majority")


async def majority() -> None:
    await asyncio.sleep(0)


async def missing(request: bytes, call: Call) -> bytes:
    raise CallRefused(StatusCode.NOT_FOUND, "topic /default/x does not exist")


@pytest.mark.parametrize(
    ("barrier", "code"),
    [(no_majority, StatusCode.UNAVAILABLE), (majority, StatusCode.NOT_FOUND)],
)
async def test_not_found_is_said_only_by_who_knows(barrier: Any, code: StatusCode) -> None:
    none = cast(Any, SimpleNamespace())
    readiness = Readiness(barrier, none, none, BrokerId(1), SystemClock())
    forwarding = Forwarding(none, none, BrokerId(1), none, readiness)
    table = HandlerTable()
    table.add_unary(services.DELETE_TOPIC.path, missing)
    serve = forwarding._caught_up(table.unary[services.DELETE_TOPIC.path])
    with pytest.raises(CallRefused) as refused:
        await serve(b"", CALL)
    assert refused.value.code is code
    assert "topic /default/x does not exist" in refused.value.text
