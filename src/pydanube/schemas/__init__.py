"""What payloads look like: schema formats, their rules of compatibility, validation, decoding."""
