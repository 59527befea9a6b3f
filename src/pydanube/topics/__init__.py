"""Topics and namespaces: their catalogue, their limits, their messages."""
