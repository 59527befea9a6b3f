from typing_extensions import override

from pydanube.wire.http2.engine import Http2Engine
from tests.contract.engine_contract import EngineContract


class TestHttp2Engine(EngineContract):
    @override
    def engine(self):
        return Http2Engine()
