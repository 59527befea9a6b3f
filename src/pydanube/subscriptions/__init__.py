"""Carries out what dispatch decides: outboxes, cursors, dead letters."""
