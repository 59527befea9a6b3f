"""The journal: append, group commit, recovery."""
