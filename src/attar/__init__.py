"""attar."""
