"""The schema registry: subjects, their versions, and the topics that are bound to them."""
