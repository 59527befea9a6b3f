"""Measures brokers: one job, the same for every system, and the table of what came out."""
