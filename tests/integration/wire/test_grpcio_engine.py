from typing_extensions import override

from pydanube.wire.grpcio.engine import GrpcioEngine
from tests.contract.engine_contract import EngineContract


class TestGrpcioEngine(EngineContract):
    @override
    def engine(self):
        return GrpcioEngine()
