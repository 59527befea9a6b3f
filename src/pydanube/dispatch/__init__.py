"""Who gets which message next: pure decisions over offset ranges."""
