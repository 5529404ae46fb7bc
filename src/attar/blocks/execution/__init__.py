"""How a step runs fast: CUDA graphs, streams, compilation, precision."""
