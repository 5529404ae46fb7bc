"""The client's half: what happens where the data are, and what leaves from there."""
