"""Talks to a broker: connections, producers, consumers, administration."""
