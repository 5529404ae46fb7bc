"""Records as pictures."""
