"""One module per noun: typed verbs with typed results."""
