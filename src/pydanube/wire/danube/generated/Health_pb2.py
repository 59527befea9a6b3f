"""The messages of Health.proto, written by tools/generate_stubs.py."""

from pydanube.wire.danube.private_pool import load as _load

DESCRIPTOR = _load(
    (
        b'\n\x0cHealth.proto\x12\x0egrpc.hea'
        b'lth.v1"%\n\x12HealthCheckReq'
        b'uest\x12\x0f\n\x07service\x18\x01 \x01(\t"\xa9\x01'
        b'\n\x13HealthCheckResponse\x12A\n'
        b'\x06status\x18\x01 \x01(\x0e21.grpc.hea'
        b'lth.v1.HealthCheckRespon'
        b'se.ServingStatus"O\n\rServ'
        b'ingStatus\x12\x0b\n\x07UNKNOWN\x10\x00\x12\x0b'
        b'\n\x07SERVING\x10\x01\x12\x0f\n\x0bNOT_SERVI'
        b'NG\x10\x02\x12\x13\n\x0fSERVICE_UNKNOWN\x10'
        b'\x032\xae\x01\n\x06Health\x12P\n\x05Check\x12".'
        b'grpc.health.v1.HealthChe'
        b'ckRequest\x1a#.grpc.health.'
        b'v1.HealthCheckResponse\x12R'
        b'\n\x05Watch\x12".grpc.health.v1'
        b'.HealthCheckRequest\x1a#.gr'
        b'pc.health.v1.HealthCheck'
        b'Response0\x01b\x06proto3'
    ),
    globals(),
)
