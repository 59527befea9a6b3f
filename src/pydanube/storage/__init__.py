"""The bytes: one journal per broker, and the door through which topics read and write it."""
