"""Which broker serves which topic: load reports, placement and rebalancing, decided purely."""
