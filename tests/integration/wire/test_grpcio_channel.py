import subprocess
import sys

import pytest
from typing_extensions import override

from pydanube.errors import NotSupported
from pydanube.wire.grpcio.channel import GrpcioChannel
from tests.contract.channel_contract import ChannelContract


class TestGrpcioChannel(ChannelContract):
    @override
    def channel(self, url):
        return GrpcioChannel(url)

    def test_tls_is_refused_with_a_way_out(self):
        with pytest.raises(NotSupported, match="use http://"):
            self.channel("https://localhost:6650")

    def test_grpcio_is_not_loaded_before_the_first_call(self):
        program = (
            "import sys; from pydanube.wire.grpcio.channel import GrpcioChannel; "
            "GrpcioChannel('localhost:1'); sys.exit('grpc' in sys.modules)"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
