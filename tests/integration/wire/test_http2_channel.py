from typing_extensions import override

from pydanube.wire.http2.channel import Http2Channel
from tests.contract.channel_contract import ChannelContract


class TestHttp2Channel(ChannelContract):
    @override
    def channel(self, url):
        return Http2Channel(url)
