"""Raft, as decisions alone: messages, ticks and proposals in; what to store, send and apply out."""
