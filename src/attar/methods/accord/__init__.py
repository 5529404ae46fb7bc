"""accord: attar's own method."""
