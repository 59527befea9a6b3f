"""Brokers that share topics: who is there, who serves what, and where copies are."""
