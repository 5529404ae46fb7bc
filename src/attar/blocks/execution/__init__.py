"""How a step runs fast: CUDA graphs, streams, compilation, precision."""

from attar.blocks.execution.compile import compile_blocks, has_compiled_blocks
from attar.blocks.execution.cuda_graphs import Outputs, Run, at_once, gradient_step, run_on
from attar.blocks.execution.precision import Precision, arithmetic, searching
from attar.blocks.execution.streams import heavy_on, laid_out, plainly, side_by_side

__all__ = [
    "Outputs",
    "Precision",
    "Run",
    "arithmetic",
    "at_once",
    "compile_blocks",
    "gradient_step",
    "has_compiled_blocks",
    "heavy_on",
    "laid_out",
    "plainly",
    "run_on",
    "searching",
    "side_by_side",
]
