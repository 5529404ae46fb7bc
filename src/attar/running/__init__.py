"""How a run is driven: steps, progress, deadline, checkpoints, its folder."""
