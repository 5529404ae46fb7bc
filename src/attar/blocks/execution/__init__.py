"""How a step runs fast: CUDA graphs, streams, compilation, precision."""

from attar.blocks.execution.compile import compile_blocks, has_compiled_blocks
from attar.blocks.execution.cuda_graphs import (
    GraphRunner,
    Outputs,
    Run,
    Runner,
    at_once,
    eager,
    gradient_step,
    run_on,
    runner_for,
)
from attar.blocks.execution.precision import Precision, arithmetic, autotune_cudnn, searching
from attar.blocks.execution.streams import (
    channels_last,
    contiguous,
    heavy_on,
    laid_out,
    plainly,
    prefers_streams,
    run_in_streams,
    side_by_side,
)

__all__ = [
    "GraphRunner",
    "Outputs",
    "Precision",
    "Run",
    "Runner",
    "arithmetic",
    "at_once",
    "autotune_cudnn",
    "channels_last",
    "compile_blocks",
    "contiguous",
    "eager",
    "gradient_step",
    "has_compiled_blocks",
    "heavy_on",
    "laid_out",
    "plainly",
    "prefers_streams",
    "run_in_streams",
    "run_on",
    "runner_for",
    "searching",
    "side_by_side",
]
