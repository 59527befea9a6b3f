"""Message classes and their types, written by tools/generate_stubs.py from proto/."""
