"""JSON Schema: payloads of JSON text."""
