"""Administration: typed verbs shown by every face."""
