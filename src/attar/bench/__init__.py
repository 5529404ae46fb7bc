"""A recipe -> a grid of cells -> clients trained once -> records -> tables."""
