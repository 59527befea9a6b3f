"""A world that repeats itself by seed: virtual time, a disk that loses, a network that breaks."""
