"""The small, replicated truth: keys, values, revisions, watches, leases."""
