"""The same job on other brokers, interleaved in rounds; see `python -m benchmarks.peers --help`."""
