"""The nouns every room shares: names, ids, messages, batches, policies."""
