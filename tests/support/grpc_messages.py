"""Messages as the bytes that follow each other on a gRPC call."""

from collections.abc import Sequence

from pydanube.wire.http2.grpc_framing import message_pieces


def frame_messages(messages: Sequence[bytes]) -> bytes:
    return b"".join(message_pieces(messages))
