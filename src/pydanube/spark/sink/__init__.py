"""Writing frames into topics, each row once."""
