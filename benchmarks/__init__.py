"""Programs that print the figures of docs/performance.md. Nothing here is a test."""
