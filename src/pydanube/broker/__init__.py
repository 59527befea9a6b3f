"""The broker: configuration, wiring, and the services on its ports."""
