"""Our status codes as grpcio's."""

from collections.abc import Mapping
from types import MappingProxyType

import grpc

from pydanube.wire.calls import StatusCode

GRPC_CODES: Mapping[StatusCode, grpc.StatusCode] = MappingProxyType(
    {code: grpc.StatusCode[code.name] for code in StatusCode}
)
OUR_CODES: Mapping[grpc.StatusCode, StatusCode] = MappingProxyType(
    {theirs: ours for ours, theirs in GRPC_CODES.items()}
)
