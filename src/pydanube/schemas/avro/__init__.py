"""Avro: bare datums and object container files."""
