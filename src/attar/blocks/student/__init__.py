"""The student and what it learns from."""
