"""The Danube messages: generated stubs, and their translation to and from the model."""
