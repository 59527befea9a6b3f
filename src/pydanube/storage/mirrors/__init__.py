"""Copies of topics in the journals of other brokers: the owner's side and the mirror's."""
