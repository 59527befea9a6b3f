"""Protocol Buffers: payloads are one message in its binary form."""
