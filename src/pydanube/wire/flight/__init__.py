"""Arrow Flight: the batch API, framed by hand so that header and body stay the bytes they are."""
