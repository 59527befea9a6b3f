"""The only door to the outside: time, randomness, files, network, tasks and thread hops."""
