"""Brokers of a cluster: who lives, who serves which topic, and how topics change hands."""
