"""What the house runs on itself: tests, generated files, figures. Nothing a user runs."""
