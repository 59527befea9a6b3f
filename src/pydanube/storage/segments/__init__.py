"""A topic's older messages: Parquet files in a directory or object store, and a catalogue."""
