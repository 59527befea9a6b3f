"""gRPC over HTTP/2, our own: a codec without I/O, and the drivers that put it on the network."""
