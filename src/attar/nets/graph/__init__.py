"""Nets that came as a graph: the format, its operators and their checks."""
